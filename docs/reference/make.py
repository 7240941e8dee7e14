"""Write the pages of this folder that are made from the code: commands.md, recipe.md, sweep.md and trial.md.

python docs/reference/make.py           # writes those that differ
python docs/reference/make.py --check   # status 1 if one differs
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from contextwise.cli import commands
from contextwise.cli.start import schema_of

FOLDER = Path(__file__).parent
MADE = "<!-- Made by docs/reference/make.py; `make docs` writes it again. -->\n"
FILES = {
    "recipe": (
        "Keys of a recipe",
        "A recipe is the YAML file of one training run ([training](../train.md)). `--set training.steps=500` sets a key on\n"
        "the command line; `contextwise recipes` lists the recipes that come with the package.",
    ),
    "sweep": ("Keys of a sweep", "A sweep is a base recipe and a grid of settings ([sweeps](../plan.md#sweep))."),
    "trial": (
        "Keys of a trial",
        "A trial is two or more arms on one corpus ([trials](../trial.md)).\n`contextwise trial gpt2 contextlm --corpus …` "
        "needs no file; the options of the command have the names of the keys, and `--set margin=0.02` sets any of them.",
    ),
}
"""Kind of file -> title and introduction of its page."""
EDITORS = """\
With its [JSON Schema](https://json-schema.org) an editor with a YAML language server (VS Code, Neovim, PyCharm) completes
keys, shows their meaning, and marks wrong ones:

```console
$ contextwise recipes --schema {kind} > {kind}.json
```

```yaml
# yaml-language-server: $schema={kind}.json
name: mine
```

Files are YAML 1.1, where `3_000_000` is a number; in the settings of the language server choose `"yaml.yamlVersion": "1.1"`.
"""
STATUSES = """\
## Exit statuses

| status | meaning |
|---:|---|
| 0 | done; of a trial or a reproduction, whatever the answer |
| 1 | a check did not pass (`causality`), part of the work failed while the input is valid (a run of a \
sweep, a loss that is not finite), or an unexpected error, whose traceback is in a file that the message \
names |
| 2 | the input is at fault: a setting, an option, a text, a corpus, a checkpoint. One sentence says what, where and how to \
fix it |
| 130 | stopped by Ctrl-C (SIGINT) |
| 143 | stopped by SIGTERM |

A command that ends with 1, 130 or 143 resumes where it stopped if it is run again. Results are on standard output, messages,
progress (in a log a line every 20 seconds or more) and errors (`error: …`) on standard error.
With `--json`, an error is also the JSON object
`{"error": {"message", "exit_status", "problems"}}` on standard output, each problem with its `field`, `why` and `fix`;
a command that has printed its result has no second object.
Numbers that do not exist (NaN, an interval without limits) are `null`; keys may be added.
"""


def pages() -> dict[str, str]:
    """Name -> text of each page."""
    made = {"commands.md": commands_page()}
    return made | {f"{kind}.md": file_page(kind) for kind in FILES}


def commands_page() -> str:
    """All verbs by panel, then those of each group, with their arguments and options."""
    parts = ["# Commands and options\n", MADE]
    parts.append(
        "`contextwise VERB --help` prints the same. Every verb also takes `--traceback` (show the traceback of an error) and\n"
        "`--trust-remote-code` (run the Python code that comes with a model).\n"
    )
    parts.append(STATUSES)
    heading = ""
    for name, (panel, function) in commands.verbs().items():
        group, _, verb = name.rpartition(" ")
        if (group or panel) != heading:
            heading = group or panel
            parts.append(f"## {f'The group {group}' if group else panel}\n")
            parts += [(commands.groups()[group].__doc__ or "").partition("\n")[0] + "\n"] if group else []
        if group and verb in commands.points() and commands.points()[verb].value == commands.points()[name].value:
            parts.append(f"### {name}\n\nThe same as [`contextwise {verb}`](#{verb}).\n")
            continue
        single = typer.Typer(add_completion=False)
        single.command(name)(function)
        command = typer.main.get_command(single)
        parts.append(verb_section(name, command, inspect.getdoc(function) or ""))
    return "\n".join(parts)


def verb_section(name: str, command: Any, text: str) -> str:
    """A verb's usage, description, and table of parameters."""
    context = command.make_context(name, [], resilient_parsing=True)
    rows, usage = [], []
    for each in command.params:
        names, help_text = each.get_help_record(context)
        if each.param_type_name == "argument":
            names = names.partition(" <")[0].removesuffix("...").upper()
            names += "..." if each.nargs == -1 else ""
            usage.append(names if each.required else f"[{names}]")
        help_text, _, default = help_text.removesuffix("]").partition("  [")
        default = default.removeprefix("default: ")
        default = re.sub(r"^\((.*?)\)", r"\1", default)
        rows.append(f"| `{cell(names)}` | {cell(help_text)} | {cell(default)} |")
    synopsis = " ".join(["contextwise", name, *usage, "[OPTIONS]"])
    heading = [f"### {name}\n", f"```text\n{synopsis}\n```\n", text + "\n"]
    return "\n".join([*heading, "| | meaning | default |", "|---|---|---|", *rows]) + "\n"


def file_page(kind: str) -> str:
    """The keys of a kind of file: a table for each section, with those of its variants."""
    title, introduction = FILES[kind]
    schema = schema_of(kind)
    parts = [f"# {title}\n", MADE, introduction + "\n", EDITORS.format(kind=kind)]
    for heading, section in sections(schema):
        parts.append(f"## {heading}\n\n{section.get('description', '')}\n")
        required = section.get("required", [])
        rows = [
            f"| `{name}` | {cell(type_of(value, schema))} | {cell(value_of(value, name in required))} "
            f"| {cell(value.get('description', ''))} |"
            for name, value in section.get("properties", {}).items()
        ]
        parts.append("\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Heading and schema of the file itself, and of each section below it, once and where it is highest."""
    definitions = schema["$defs"]
    highest = {name for value in schema["properties"].values() for name in named(value, definitions)}
    seen: set[str] = set()
    titles: set[str] = set()

    def walk(section: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, value in section.get("properties", {}).items():
            for name in named(value, definitions):
                if name in seen or (path and name in highest):
                    continue
                seen.add(name)
                for below in definitions[name].get("anyOf", [definitions[name]]):
                    title = below.get("title", "")
                    if "properties" in below and title not in titles:
                        titles.add(title)
                        yield f"{path}{key}: {words(title)}", below
                        yield from walk(below, f"{path}{key}.")

    yield "The file", schema
    yield from walk(schema, "")


def named(value: Any, definitions: dict[str, Any]) -> Iterator[str]:
    """The definitions that a key's schema names, in its order, those of alternatives too."""
    if isinstance(value, dict):
        if "$ref" in value:
            name = value["$ref"].rpartition("/")[2]
            yield name
            yield from named(definitions[name].get("anyOf"), definitions)
        for key, each in value.items():
            if key != "properties":
                yield from named(each, definitions)
    elif isinstance(value, list):
        for each in value:
            yield from named(each, definitions)


def words(name: str) -> str:
    """The name of a class as words: ``ContextPredictorSettings`` -> context predictor."""
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+\d*", name.removesuffix("Settings"))
    return " ".join(part if part.isupper() and len(part) > 1 else part.lower() for part in parts)


def type_of(value: dict[str, Any], schema: dict[str, Any]) -> str:
    """The values that a key takes, in words."""
    for many in ("anyOf", "oneOf"):
        if many in value:
            kinds = dict.fromkeys(type_of(each, schema) for each in value[many])
            kinds.pop("none", None)
            sections = [kind for kind in kinds if kind == "section"]
            return " or ".join([*(kind for kind in kinds if kind != "section"), *sections])
    if "$ref" in value:
        definition = schema["$defs"][value["$ref"].rpartition("/")[2]]
        return type_of(definition, schema) if "anyOf" in definition else "section"
    if "properties" in value:
        return "section"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    kind = value.get("type")
    if isinstance(kind, list):
        return " or ".join(type_of({**value, "type": each}, schema) for each in kind if each != "null")
    if kind == "array":
        return f"list of {type_of(value.get('items', {}), schema)}"
    if kind == "object":
        more = value.get("additionalProperties")
        return f"name: {type_of(more, schema)}" if isinstance(more, dict) else "mapping"
    name = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "none"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {value[key]:,}" for key, sign in bounds.items() if key in value]
    return " ".join([name.get(str(kind), "any value"), ", ".join(limits)]).strip()


def value_of(value: dict[str, Any], required: bool) -> str:
    """The default of a key."""
    default = value.get("default")
    if required:
        return "required"
    if default is None or default == "" or isinstance(default, dict):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def cell(text: str) -> str:
    """Text in a table: one line, without its marks of columns."""
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    stale = [
        name for name, text in pages().items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text
    ]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/reference/{name} is stale; run: python docs/reference/make.py")
        return int(bool(stale))
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
