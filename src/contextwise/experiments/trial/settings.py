"""The settings of a trial, and its arms that have a name of their own."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from contextwise.base import plugins
from contextwise.base.config import (
    Name,
    Settings,
    as_numbers,
    check_once,
    parse_yaml,
    read_yaml,
    settings_of,
    validate,
    with_output,
    with_overrides,
)
from contextwise.base.errors import ConfigError, Problem, did_you_mean
from contextwise.base.estimates import Documents, listed
from contextwise.base.files import ExpandedPath, expanded
from contextwise.base.progress import say
from contextwise.base.recipes import recipe_folders, recipe_path, shipped_recipe, shipped_recipes
from contextwise.base.runs import comparable
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.folder import Question
from contextwise.experiments.launchers import AnyExecutor
from contextwise.experiments.recipe_kinds import check_trial
from contextwise.experiments.run_set import FAST_TRAINING, Arm, with_identified_code, with_sections
from contextwise.models.variant.code import is_variant, parse_variant
from contextwise.training.kinds import VariantSettings
from contextwise.training.settings import Section

DEFAULT_TOKENS = 524_288
DEFAULT_RECIPE: dict[str, Any] = {
    "data": {"context": 256},
    "model": {"family": "gpt2", "size": "nano"},
    "training": {"tokens_per_step": 1024} | FAST_TRAINING,
}
"""The recipe that arms share where the trial has none; all else is at the defaults of training. Runs of the default length
have 512 steps, and the short ones of the search over rates 128."""
BUILT_IN: dict[str, list[str]] = {
    "gpt2": [],
    "pm": ["model.extra_layers=2"],
    "contextlm": ["model.context_predictor.chunk_size=4"],
    "contextlm-every": ["model.context_predictor.chunk_size=4", "model.context_predictor.inject_every_layer=true"],
    "contextlm-behind": ["model.context_predictor.chunk_size=4", "model.context_predictor.injection_layer=1"],
    "contextlm-add": ["model.context_predictor.chunk_size=4", "model.context_predictor.injection=add"],
} | {name: arm for section in plugins.load("sections", Section).values() for name, arm in section.arms.items()}
"""Arms that are known by name; those of sections among them."""
ARM_WORDS = {
    "pm": "parameter-matched: two more layers, and so as many parameters as contextlm has with its predictor",
    "contextlm": "ContextLM: the prediction of the next chunk's embedding is added behind the embedding, through a gate",
    "contextlm-every": "ContextLM: the prediction is added before every layer, through a gate",
    "contextlm-behind": "ContextLM: predicts from and adds to the first layer's output, through a gate",
    "contextlm-add": "ContextLM: the prediction is added as it is, as the paper writes it",
}
"""Descriptions of the arms that are known by name."""
SAME_FOR_ALL = dict.fromkeys(
    ("training.tokens", "training.steps", "training.epochs"),
    "the runs of all arms are as long as the trial's `tokens` say",
) | {"seed": "all arms have the seeds of the trial"}
"""Settings that no arm may have for itself, with the reason."""
VARIANT = "model.variant="
MAY_CHANGE = {"seeds", "executor", "output", "name"}
"""Settings that a later call may change: they are not part of the question."""


class RateSearch(Settings):
    """A search over learning rates, the same for every arm: short runs on documents and a seed that no decision uses."""

    factors: list[float] = Field(
        default=[0.5, 1.0, 2.0], min_length=1, description="of each arm's own rates (of AdamW and Muon alike)"
    )
    share: float = Field(default=0.25, gt=0, le=1, description="of a run's tokens, for each short run")
    widenings: int = Field(
        default=2, ge=0, description="how often the factors are extended, for all arms, where the best is at an edge"
    )

    @field_validator("factors")
    @classmethod
    def _above_zero(cls, factors: list[float]) -> list[float]:
        if min(factors) <= 0:
            raise ConfigError(Problem("but factors must be above 0", value=min(factors)))
        return sorted(set(factors))


class TrialSettings(Settings):
    """A comparison of two or more ways to train, with paired seeds: seeds are added until the answer is decided."""

    below = dict.fromkeys(("data", "objective", "model", "training"), "recipe")

    name: Name
    arms: dict[str, Arm] = Field(
        description=f"two or more; names ({', '.join(BUILT_IN)}), recipes, models of your own (path.py:Name), or "
        "NAME: settings of its own"
    )
    reference: str = Field(default="", description="the arm that the others are compared to; the first if not given")
    corpus: ExpandedPath = Field(description="folder of a prepared corpus")
    recipe: dict[str, Any] = Field(
        default_factory=lambda: DEFAULT_RECIPE, description="what the arms share; nano GPT-2 if not given"
    )
    equal: Literal["flops", "time", "tokens"] = Field(
        default="flops", description="what the arms' runs have in common: FLOPs, measured training time, or tokens"
    )
    tokens: list[int] = Field(
        default_factory=list,
        description="training tokens of the reference's runs, one budget or several; those of the recipe if not given",
    )
    margin: float = Field(default=0.01, gt=0, description="the smallest difference that matters, nats per token")
    confidence: float = Field(default=0.95, ge=0.5, lt=1, description="of the intervals of all comparisons together")
    documents: Documents = Field(
        default="fixed", description="decide about these held-out documents (fixed) or any like them (random)"
    )
    seeds: int = Field(default=20, ge=2, description="the most seeds")
    first_seed: int = Field(
        default=0,
        ge=0,
        description="the first of the seeds, which count up from it; others than before confirm a result",
    )
    rates: RateSearch | None = Field(
        default_factory=RateSearch, description="search, fixed (each arm's own), or settings of the search"
    )
    limit: int | None = Field(default=None, ge=1, description="use the first N held-out documents only")
    score: dict[str, Any] = Field(
        default_factory=dict,
        description="how every arm is scored: `measure`, a measure of the loss on documents (evaluate if not given), and its "
        "settings",
    )
    executor: AnyExecutor = ExecutorSettings()
    output: str = Field(default="", description="the trial's folder; trials/<name> if not given")

    @field_validator("arms", mode="before", json_schema_input_type=list[str] | dict[str, Arm])
    @classmethod
    def _named_arms(cls, arms: Any) -> Any:
        if isinstance(arms, list):
            named = {_arm_name(arm): arm for arm in arms}
            if len(named) < len(arms):
                raise ConfigError("two arms have the same name; give each a name of its own in a trial file")
            return {name: _arm(str(arm)) for name, arm in named.items()}
        if not isinstance(arms, dict):
            raise ConfigError(Problem("but must be a list of arms, or a mapping of names to arms", value=arms))
        return {name: _given_arm(str(name), arm) for name, arm in arms.items()}

    @field_validator("arms")
    @classmethod
    def _identified_arms(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        for name, arm in arms.items():
            if given := [setting for setting in arm.settings if setting.split("=")[0] in SAME_FOR_ALL]:
                key = given[0].split("=")[0]
                raise ConfigError(f"the arm {name!r} sets {key}, but {SAME_FOR_ALL[key]}; leave it out of the arm")
            arm.settings = [_identified_setting(setting) for setting in arm.settings]
            arm.recipe = None if arm.recipe is None else with_identified_code(arm.recipe)
        return arms

    @field_validator("score")
    @classmethod
    def _own_limit(cls, score: dict[str, Any]) -> dict[str, Any]:
        if "limit" in score:
            raise ConfigError(Problem("is no setting of a score", "limit", fix="give the trial's own limit"))
        return score

    @field_validator("recipe")
    @classmethod
    def _identified_recipe(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        return with_identified_code(with_sections(recipe))

    @field_validator("tokens", mode="before", json_schema_input_type=int | list[int])
    @classmethod
    def _one_budget(cls, tokens: Any) -> Any:
        tokens = as_numbers(tokens, "tokens")
        return [tokens] if isinstance(tokens, int | float) else tokens

    @field_validator("tokens")
    @classmethod
    def _budgets(cls, tokens: list[int]) -> list[int]:
        if tokens and min(tokens) < 1:
            raise ConfigError(Problem("but must be at least 1", value=min(tokens)))
        return sorted(set(tokens))

    @field_validator("rates", mode="before", json_schema_input_type=Literal["search", "fixed"] | RateSearch | None)
    @classmethod
    def _search(cls, rates: Any) -> Any:
        if not isinstance(rates, str):
            return rates
        if rates not in ("search", "fixed"):
            raise ConfigError(Problem("but must be search or fixed", value=rates))
        return {} if rates == "search" else None

    @model_validator(mode="after")
    def _whole(self) -> "TrialSettings":
        problems = []
        if len(self.arms) < 2:
            problems.append(Problem("has nothing to compare; give two arms or more", "arms"))
        if self.reference and self.reference not in self.arms:
            why = f"which is none of the arms ({', '.join(self.arms)})"
            problems.append(Problem(why, "reference", self.reference))
        for name, arm in self.arms.items():
            if arm.model:
                why, fix = "is a model that exists already", "give a recipe or settings to train it with"
                problems.append(Problem(why, f"arms.{name}", fix=fix))
            if arm.seeds:
                problems.append(Problem("has seeds of its own, which cannot be paired", f"arms.{name}"))
            if any(setting.partition("=")[2].strip().startswith("@") for setting in arm.settings):
                why = "is made from another run; train that first, and name its folder"
                problems.append(Problem(why, f"arms.{name}"))
        if problems:
            raise ConfigError(*problems)
        return self

    @property
    def folder(self) -> Path:
        """The trial's folder."""
        return expanded(self.output or f"trials/{self.name}")

    @property
    def baseline(self) -> str:
        """The arm that the others are compared to."""
        return self.reference or next(iter(self.arms))

    @property
    def others(self) -> list[str]:
        """The arms that are compared to the reference."""
        return [name for name in self.arms if name != self.baseline]

    def measure(self, limit: int | None = None) -> Any:
        """How the runs are scored, on the first documents."""
        from contextwise.comparison.compared_runs import measures_of_loss
        from contextwise.evaluation.kernel import measures
        from contextwise.evaluation.measures.loss import Loss

        values = {"measure": Loss.name, "limit": limit, **self.score}
        if (name := values.pop("measure")) not in (known := measures_of_loss()):
            raise ConfigError(f"score.measure is {name!r}, but must be one of {', '.join(known)}")
        return validate(measures()[name], values, "the trial's score")

    def question(self) -> dict[str, Any]:
        """The settings that a later call may not change, as plain values; the corpus counts by its content, not its path."""
        values = self.model_dump(mode="json", exclude=MAY_CHANGE | {"corpus"})
        values["recipe"] = comparable(values["recipe"])
        for arm in values["arms"].values():
            arm["recipe"] = arm["recipe"] and comparable(arm["recipe"])
            arm["settings"] = [*map(_by_content, arm["settings"])]
        return values | {"reference": self.baseline}


def load_trial(
    trial: str | Path | None,
    values: dict[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
) -> TrialSettings:
    """Load the settings of a trial from a file, or from a command line.

    Args:
        trial: a YAML file, or the name of a trial that comes with the package; None if ``values`` are all.
        values: go before the file's.
        overrides: ``key=value`` settings that go before both: ``recipe.model.size=pico``.
        output: the trial's folder, in place of the file's.
    """
    data, folder = dict[str, Any](), Path()
    if trial is not None:
        check_trial(trial)
        data, folder = Question.read_file(trial, "trial")
    check_once(overrides, values)
    data |= values
    if isinstance(data.get("recipe"), str):
        data["recipe"] = _recipe(recipe_path(data["recipe"], folder=folder))
    if overrides and "recipe" not in data:
        data["recipe"] = DEFAULT_RECIPE
    data = with_output(with_overrides(data, overrides or []), overrides, output)
    shared = [key for key, _ in settings_of(overrides or []) if key.startswith("recipe.")]
    if trial is None:
        given = data.get("arms")
        arms = "-vs-".join(map(_arm_name, given)) if isinstance(given, list | dict) else ""
        data.setdefault("name", f"{arms or 'trial'}-on-{Path(str(data.get('corpus'))).name}")
    settings = validate(TrialSettings, data, "the trial" if trial is None else f"the trial {trial}")
    own = [name for name, arm in settings.arms.items() if arm.recipe is not None]
    if shared and own:
        have = "has a recipe of its own" if len(own) == 1 else "have recipes of their own"
        say(f"note: {listed(own)} {have}, which {listed(shared)} {'does' if len(shared) == 1 else 'do'} not change")
    return settings


def _identified_setting(setting: str) -> str:
    """A setting with the SHA-256 of the file that it names: another content of the file is another question."""
    if not setting.startswith(VARIANT):
        return setting
    value = parse_yaml(setting.removeprefix(VARIANT))
    return VARIANT + json.dumps(validate(VariantSettings, value, setting).model_dump())


def _by_content(setting: str) -> str:
    """An identified setting without the folder of its file, which may be moved."""
    if not setting.startswith(VARIANT):
        return setting
    value = parse_yaml(setting.removeprefix(VARIANT))
    return VARIANT + json.dumps({**value, "file": Path(value["file"]).name})


def setting_in_words(setting: str) -> str:
    """A setting of an arm for readers: of a model of the user's own its file, class and options."""
    value = parse_yaml(setting.removeprefix(VARIANT)) if setting.startswith(VARIANT) else None
    if not isinstance(value, dict):
        return setting
    options = ", ".join(f"{name}={option}" for name, option in value.get("options", {}).items())
    return f"{Path(value['file']).name}:{value['name']}{f' with {options}' * bool(options)}"


def _given_arm(name: str, arm: Any) -> Any:
    """An arm of a trial file: nothing (its name says it), another name or recipe file, or settings."""
    if arm is None or isinstance(arm, str):
        return _arm(arm or name)
    if isinstance(arm, list) and arm and is_variant(arm[0]):
        return [*_arm(arm[0]).settings, *arm[1:]]
    if isinstance(arm, list) and name in BUILT_IN:
        return [*BUILT_IN[name], *(setting for setting in arm if setting not in BUILT_IN[name])]
    return arm


def _arm_name(arm: Any) -> str:
    """The name of an arm that is given without one: that of its recipe file, or of its class with options."""
    if is_variant(arm):
        return str(arm).rpartition("/")[-1].rpartition(":")[-1]
    return Path(str(arm)).stem if _is_recipe(str(arm)) else Path(str(arm)).name


def _is_recipe(arm: str) -> bool:
    """Whether an arm is a recipe file, or a recipe that comes with the package."""
    return arm.endswith((".yaml", ".yml")) or (arm not in BUILT_IN and shipped_recipe(arm) is not None)


def _recipe(path: Path) -> dict[str, Any]:
    """What a recipe file holds; the corpus of one that comes with a package, an example, gives way to the trial's."""
    values = read_yaml(path)
    if isinstance(values.get("data"), dict) and any(path.is_relative_to(folder) for folder in recipe_folders()):
        values["data"].pop("corpus", None)
    return values


def _arm(name: str) -> Arm:
    """The arm of a built-in name, or of a recipe."""
    if _is_recipe(name):
        recipe = _recipe(recipe_path(name))
        return Arm(recipe={key: value for key, value in recipe.items() if key not in ("name", "seed", "output")})
    if is_variant(name):
        validate(VariantSettings, parse_variant(name), f"the arm {name}")
        return Arm(settings=[f"{VARIANT}{name}"])
    if name not in BUILT_IN:
        known = [*BUILT_IN, *(each.path.stem for each in shipped_recipes() if each.verb == "train")]
        hint = did_you_mean(name, known, " ").strip()
        if "=" in name:
            hint = f"in a trial file, settings are an arm with a name: `arms: {{gpt2: , mine: [{name}]}}`;"
        raise ConfigError(
            f"{name!r} is not an arm; {hint}{' ' * bool(hint)}give one of {', '.join(BUILT_IN)}, a recipe (a YAML file, or a "
            "name that `contextwise recipes` lists), a model of your own (path.py:Name), or its settings in a trial file"
        )
    return Arm(settings=BUILT_IN[name])
