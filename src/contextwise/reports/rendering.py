"""Templates, style and scripts of the pages: what all of them share.

A page is one HTML file that opens from disk, without a network. Text, tables and commands are plain HTML and can be read
without JavaScript; the figures are Plotly's, whose script is part of the file. All text from files is escaped, and the page
forbids itself to load anything.
"""

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render(
    name: str, content: dict[str, Any], figures: dict[str, Any], data: Mapping[str, Any] | None = None
) -> str:
    """The page ``name``: its template, its script, and its style sheet if it has one of its own.

    Args:
        name: of the files beside this module: ``page`` or ``sweep``.
        content: what the template shows; escaped where it is put in.
        figures: Plotly figures by the id of their place; traces say by ``meta.series`` which colour is theirs.
        data: what else the page's script reads, by the id of its element.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_file),
    )
    style = _file("base.css") + (_file(f"{name}.css") if _has(f"{name}.css") else "")
    return environment.get_template(f"{name}.html").render(
        **content,
        figures=figures,
        data={
            key: Markup(_script_json(value)) for key, value in {"figures": figures, **(data or {})}.items()
        },
        css=Markup(style),
        script=Markup(_file("figures.js") + _file(f"{name}.js")),
        plotly=Markup(get_plotlyjs()) if figures else "",
    )


def plain(text: str) -> str:
    """Text that Plotly, which knows some HTML tags, shows as it is."""
    return html.escape(text, quote=False)


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _has(name: str) -> bool:
    return resources.files(__package__).joinpath(name).is_file()


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element: without ``<`` nothing in it can end the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
