"""The verbs of the command line: entry points of the group ``contextwise.verbs``, and one for each measure.

The entry point ``train`` is a verb of the first help, and ``plan.sweep`` the verb ``sweep`` of the group ``plan``. An entry
point without a colon, such as ``plan = "my_package.verbs"``, is the module of a group: the first line of its docstring is the
group's help. Measures are the verbs of the group ``measure``.
"""

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from contextwise.base import plugins
from contextwise.base.errors import ConfigError, ContextwiseError, Problem, check_alone

PANELS = ("Start", "Train", "Decide", "Measure", "Use")
"""The panels of ``--help``, in order. Others follow, then :data:`LAST_PANEL`."""
LAST_PANEL = "More"
MEASURES = "measure"
"""The group that every measure is a verb of."""
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def _as_shown(parameters: list[Any]) -> list[Any]:
    """Parameters of a command as its help shows them: arguments in capitals, and flags without the type of a value."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        elif each.param_type_name == "argument" and each.metavar is None:
            each.metavar = each.name.upper()
    return parameters


def _refused_value(error: Any) -> Problem | None:
    """The problem of a value that pydantic refused, in the words of our settings; None for other errors of Typer."""
    if not hasattr(error.__cause__, "errors") or getattr(error, "param", None) is None:
        return None
    from contextwise.base.problems import requirement

    first = error.__cause__.errors()[0]
    why, fix = requirement(first)
    option = error.param.param_type_name == "option"
    return Problem(f"but {why}", error.param.opts[0] if option else error.param.name, first["input"], fix)


class Verb(TyperCommand):
    """Command of a verb; an error that names a setting names its option in place of it."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_shown(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in ("--out", "--html"):  # an empty path would be the current folder, as of an unset variable
            if f"{option}=" in args or (option, "") in pairwise(args):
                raise ConfigError(f"{option} is empty; give a path")
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # Typer does not export its classes
            if (problem := _refused_value(error)) is not None:
                raise ConfigError(problem) from None
            if getattr(error, "ctx", ctx) is None:  # Typer's parser leaves it out
                vars(error)["ctx"] = ctx
            if hasattr(error, "possibilities"):
                unknown = getattr(error, "option_name", "").removeprefix("--")
                arguments = [each.metavar for each in self.params if each.param_type_name == "argument"]
                meant = [f"the argument {each}" for each in arguments if each == unknown.upper()]
                similar = [each for each in error.possibilities or () if each != "--help"]
                near = [f"--{each}" for each in difflib.get_close_matches(unknown, (x[2:] for x in similar))]
                settings = ["--set KEY=VALUE"] * any("--set" in each.opts for each in self.params)
                section = {"train": "training", "trial": "recipe.training"}.get(str(self.name))
                if section and (name := unknown.replace("-", "_")) in _of_training():
                    settings = [f"--set {section}.{name}=VALUE"]
                error.possibilities = meant or near or settings
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            if self.name != "train":
                check_alone(ctx.command_path)
            return super().invoke(ctx)
        except ContextwiseError as error:
            options = {str(each.name): each.opts[0] for each in self.params if each.param_type_name == "option"}
            if OF_A_FILE.match(str(error)):  # which sets what the command line does not
                typed = {
                    name for name in options if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
                }
                options = {name: each for name, each in options.items() if name in typed}
            options |= {f"executor.{'kind' if name == 'executor' else name}": each for name, each in options.items()}
            error.args = (named_as_typed(str(error), options), *error.args[1:])
            raise


def _of_training() -> Collection[str]:
    """The settings of a recipe's section ``training``."""
    from contextwise.training.hyperparameters import TrainingSettings

    return TrainingSettings.model_fields


OF_A_FILE = re.compile(r"the \w+ .+\.ya?ml has (?:a|\d+) problem")
SETTING = re.compile(
    r"(?P<start>^|problem: |\n  - )(?P<first>(?:executor\.)?\w+)(?:\.\d+(?:\.\w+)*)?(?=:? )"
    r"|`(?P<marked>\w+)`"
    r"|(?<![\w./'\"-])(?P<long>[a-z]+(?:_[a-z]+)+)(?![\w/'\"-]|\.\w)"
)
"""Possible names of settings in a message: the first word, a word in backticks, and one with underscores."""


def named_as_typed(message: str, options: Mapping[str, str]) -> str:
    """A message with options in place of the settings that it names; setting -> option."""

    def renamed(match: re.Match[str]) -> str:
        if "known keys are" in message[: match.start()].rpartition("\n")[2]:  # of a file
            return match[0]
        name = str(match["first"] or match["marked"] or match["long"])
        return (match["start"] or "") + options[name] if name in options else match[0]

    return SETTING.sub(renamed, message)


class LazyCommand(TyperCommand):
    """Placeholder of a verb in a list of verbs; makes the options when it is run."""

    def __init__(self, typed: str, function: Callable[..., None], **arguments: Any) -> None:
        super().__init__(typed.rpartition(" ")[2], **arguments)
        self.function = function

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(self.name, cls=Verb)(self.function)
        return typer.main.get_command(single).make_context(info_name, args, parent=parent, **extra)


class LazyCommands(TyperGroup):
    """The first help, or a group; imports a verb when it is asked for, and all of them for the help."""

    def __init__(self, group: str = "", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.group = group
        del self.commands

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_shown(super().get_params(ctx))

    @cached_property
    def commands(self) -> dict[str, Any]:  # type: ignore[override]
        """Name -> verb or group."""
        return {typed.rpartition(" ")[2]: _command(typed) for typed in names_in(self.group)}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        typed = f"{self.group} {cmd_name}".lstrip()
        return _command(typed) if " " not in cmd_name and typed in {*points(), *groups()} else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse an unknown verb with a hint at the nearest one, in whichever group that is."""
        known = self.get_command(ctx, args[0]) is not None or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:
            lists = " ".join(filter(None, ["contextwise", self.group, "--help"]))
            ctx.fail(f"there is no verb {args[0]!r}; {_meant(args[0], self.group) or f'{lists} lists all'}")
        return super().resolve_command(ctx, args)


def _meant(word: str, group: str) -> str:
    """Hint at the verb that an unknown word means, rather one of its group; empty without a similar one."""
    by_name: dict[str, str] = {}
    for typed in sorted({*points(), *groups()}, key=lambda typed: (typed.rpartition(" ")[0] != group, len(typed))):
        by_name.setdefault(typed.rpartition(" ")[2], typed)
    near = difflib.get_close_matches(word, by_name, n=1)
    return f"did you mean 'contextwise {by_name[near[0]]}'?" if near else ""


def _command(typed: str) -> Any:
    """The command of a verb or group; None for a verb that cannot be imported."""
    if typed not in groups():
        found = verb_of(typed)
        if found is None:
            return None
        panel, function = found
        return LazyCommand(typed, function, help=_first_line(function), rich_help_panel=None if " " in typed else panel)
    names = ", ".join(sorted(name.removeprefix(f"{typed} ") for name in points() if name.startswith(f"{typed} ")))
    about = _first_line(groups()[typed])
    return LazyCommands(
        typed,
        name=typed,
        help=about,
        short_help=f"{about.removesuffix('.')}: {names}." if about else f"{names}.",
        rich_help_panel=_panel(groups()[typed]),
        no_args_is_help=True,
        context_settings=HELP_OPTIONS,
    )


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().split("\n")[0] if documented is not None else ""


def _panel(module: ModuleType | None, otherwise: str = LAST_PANEL) -> str:
    return getattr(module, "PANEL", otherwise)


@cache
def points() -> dict[str, EntryPoint]:
    """Verb as it is typed, such as ``train`` or ``plan sweep`` -> its entry point."""
    named = {name.replace(".", " "): point for name, point in plugins.points("verbs").items() if point.attr}
    return {f"{MEASURES} {name}": point for name, point in plugins.points("measures").items()} | named


@cache
def groups() -> dict[str, ModuleType | None]:
    """Name -> module of each group, None for a group without one."""
    modules = {name: plugins.feature(point) for name, point in plugins.points("verbs").items() if not point.attr}
    return {typed.partition(" ")[0]: None for typed in points() if " " in typed} | modules


@cache
def verb_of(typed: str) -> tuple[str, Callable[..., None]] | None:
    """Panel and function of a verb of :func:`points`; None for one of another package that cannot be imported."""
    from contextwise.cli.measures import verb
    from contextwise.evaluation.kernel import Measure

    found = plugins.feature(points()[typed], Measure | FunctionType)
    if found is None:
        return None
    is_measure = isinstance(found, type) and issubclass(found, Measure)
    panel = _panel(sys.modules[points()[typed].module], "Measure" if is_measure else LAST_PANEL)
    return panel, verb(found, typed=typed) if is_measure else found


def names_in(group: str) -> list[str]:
    """The verbs of a group, or those of the first help with the groups, in the order of the help; imports all of them.

    The panel of a verb is the ``PANEL`` of its module. In a panel, verbs have the order of their code, and measures and groups
    follow by name. In a group, the verbs of its own module have the order of their code, and others follow by name.
    """
    own = groups().get(group)

    def order(typed: str) -> tuple[int, str, float, str]:
        panel, line = _panel(groups().get(typed)), math.inf
        if typed not in groups():
            found = verb_of(typed)
            assert found is not None
            panel, function = found[0], inspect.unwrap(found[1])
            module = points()[typed].module
            if function.__module__ == module and (not group or own is sys.modules[module]):
                line = function.__code__.co_firstlineno
        panel = "" if group else panel
        rank = PANELS.index(panel) if panel in PANELS else len(PANELS) + (panel == LAST_PANEL)
        return rank, panel, line, typed

    inside = [typed for typed in points() if typed.rpartition(" ")[0] == group and verb_of(typed) is not None]
    return sorted([*inside, *([] if group else groups())], key=order)


def verbs() -> dict[str, tuple[str, Callable[..., None]]]:
    """Verb as it is typed -> panel and function: those of the first help in its order, then those of each group."""
    ordered = [typed for group in ("", *sorted(groups())) for typed in names_in(group) if typed not in groups()]
    return {typed: found for typed in ordered if (found := verb_of(typed)) is not None}
