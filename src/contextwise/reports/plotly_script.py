"""Plotly's script without the parts that no page uses: about 0.75 MB instead of 4.8 MB.

The installed plotly package has one script with some fifty types of traces, with a map library and WebGL. Its bundler (esbuild)
wraps each source module in a function, which runs when another module calls it by name. A module whose name occurs in no module
that is kept can therefore never run, and is left out: the reachable modules from the start, with fewer types registered.
"""

import re
from functools import cache

from plotly.offline import get_plotlyjs

TRACES = ("bar", "heatmap")
"""The types of traces that pages draw besides ``scatter``, which is always part of Plotly."""


@cache
def plotly_script() -> str:
    """The script for pages; the whole script of a plotly package whose bundle has another structure."""
    whole = get_plotlyjs()
    return with_traces(whole, TRACES) or whole


def with_traces(bundle: str, traces: tuple[str, ...]) -> str | None:
    """The bundle with only the modules that these types of traces need; None if its structure is another one."""
    # Functions like `W=(e,t)=>()=>…` wrap modules: `var name=W((exports,module)=>{…});` is a CommonJS module. An ES module is
    # its functions and then `var name=E(()=>{…});`, so a piece has one CommonJS module and the ES modules up to the next.
    wrappers = re.findall(r"([\w$]+)=\(\w+,\w+(?:,\w+)?\)=>\(\)=>([^;]*)", bundle[:20_000])
    wrapped = rf"([\w$]+)=(?:{'|'.join(re.escape(name) for name, _ in wrappers)})\("
    common = "|".join(re.escape(name) for name, body in wrappers if "exports:{}" in body)
    starts = [match.start() for match in re.finditer(rf"var [\w$]+=(?:{common})\(\(", bundle)] if common else []
    last = re.compile(r"\.register\(\[([^\]]*)\]\);.*?\}\);").search(bundle, starts[-1] if starts else 0)
    if not starts or last is None:
        return None
    pieces = [bundle[start:end] for start, end in zip(starts, [*starts[1:], last.end()], strict=True)]
    owner = {name: number for number, piece in enumerate(pieces) for name in re.findall(wrapped, piece)}
    entries = re.findall(r"([\w$]+)\(\)", last[1])
    kept_entries = [entry for entry in entries if _trace(pieces, owner, entry) in traces]
    if len(kept_entries) != len(traces):
        return None
    pieces[-1] = pieces[-1].replace(last[1], ",".join(f"{entry}()" for entry in kept_entries))
    kept: set[int] = set()
    found = {len(pieces) - 1} | _mentioned(bundle[: starts[0]], owner)
    while found:
        kept |= found
        found = set[int]().union(*(_mentioned(pieces[number], owner) for number in found)) - kept
    return "".join([bundle[: starts[0]], *(pieces[number] for number in sorted(kept)), bundle[last.end() :]])


def _mentioned(text: str, owner: dict[str, int]) -> set[int]:
    """The pieces with a module whose name occurs in the text."""
    return {owner[word] for word in set(re.findall(r"([\w$]+)\(\)", text)) if word in owner}


def _trace(pieces: list[str], owner: dict[str, int], name: str) -> str | None:
    """The type of traces that a module has, which may be exported by way of another one."""
    text = pieces[owner[name]]
    forward = re.search(r"^[^{]*\{(?:\"use strict\";)?[\w$]+\.exports=([\w$]+)\(\)", text)
    if forward is not None and forward[1] in owner:
        text = pieces[owner[forward[1]]]
    trace = re.search(r'moduleType:"trace",name:"(\w+)"', text)
    return trace and trace[1]
