"""The recipe of a training run: its sections, checks across sections, and reading of files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Field, Tag, model_validator

from contextwise.base.config import Name, Settings, read_yaml, validate, with_output, with_overrides
from contextwise.base.errors import ConfigError, Problem
from contextwise.base.files import expanded
from contextwise.base.recipes import recipe_path
from contextwise.base.runs import RunFolder
from contextwise.models.sizes import MEASURED_WIDTHS, SIZES, adamw_rate
from contextwise.objectives import AnyObjective, Cut, Objective
from contextwise.objectives.causal import Causal
from contextwise.training.hyperparameters import TrainingSettings
from contextwise.training.settings import CorpusData, DataSettings, ModelSettings, data_kinds, model_kinds

FEWEST_STEPS = 100
"""Runs of fewer optimizer steps have a warning: they end in the first fall of the loss. A demo of 32 steps decided what four
times as many on the same tokens leave undecided."""


def few_steps(steps: Iterable[int]) -> str:
    """A warning of runs of fewer than :data:`FEWEST_STEPS` optimizer steps, given those of each run; empty if none is."""
    if not (few := [number for number in steps if number < FEWEST_STEPS]):
        return ""
    of_runs = f"in some runs, down to {min(few)}" if len(few) > 1 else f"({few[0]}) in a run"
    return (
        f"Fewer than {FEWEST_STEPS} optimizer steps {of_runs}. Such losses are those "
        "of the start of training, and a difference may be another one after more steps: take fewer tokens_per_step, or train "
        "on more tokens."
    )


USUAL = {"model": "sized", "data": "corpus"}
"""The kind of a section that no kind claims."""


def _any_of(section: str, kinds: Mapping[str, type[Any]]) -> Any:
    """The type of a section of one of these kinds; each has the tag ``<CALLED>``."""

    def tag_of(values: Any) -> str:
        if isinstance(values, dict):
            claimed = (kind for kind in kinds.values() if kind.claims(values))
            return f"<{next(claimed, kinds[USUAL[section]]).called}>"
        return f"<{getattr(values, 'called', kinds[USUAL[section]].called)}>"

    tagged = tuple(Annotated[kind, Tag(f"<{kind.called}>")] for kind in kinds.values())
    return Annotated[Union[tagged], Discriminator(tag_of)]  # noqa: UP007


if TYPE_CHECKING:
    AnyModel = ModelSettings
    AnyData = DataSettings
else:
    AnyModel = _any_of("model", model_kinds())
    AnyData = _any_of("data", data_kinds())


class Recipe(Settings):
    """The settings of one training run."""

    name: Name = Field(description="name of the run; runs with the same name and different seeds are compared as one")
    seed: int = Field(default=0, ge=0, lt=2**31)
    data: AnyData
    objective: AnyObjective = Field(default_factory=Causal, description="a name, or a name with settings")
    model: AnyModel = Field(default_factory=lambda: model_kinds()[USUAL["model"]]())
    training: TrainingSettings
    output: str = Field(default="", description="the run folder; by default runs/<name>-seed<seed>")

    def __reduce__(self) -> Any:
        # The classes of its parts are extended by what is installed, and pickle finds no class that way.
        return Recipe.model_validate, (self.model_dump(mode="json", exclude_unset=True),)

    @model_validator(mode="after")
    def _goes_together(self) -> "Recipe":
        problems = [*self._problems_of_data(), *self._problems_of_model(), *self._problems_of_steps()]
        problems += [] if problems else self._problems_of_stages()
        if problems:
            raise ConfigError(*problems)
        return self

    def _problems_of_steps(self) -> Iterator[Problem]:
        settings, context = self.training, self.data.context

        def wrong(name: str, why: str, fix: str) -> Problem:
            return Problem(why, f"training.{name}", getattr(settings, name), fix)

        if settings.epochs is not None and not (self.data.samples and settings.examples_per_step):
            why = "needs data.synthetic.samples, which an epoch consists of, and training.examples_per_step"
            yield Problem(why, "training.epochs")
            return
        if self.tokens_per_step % context:
            near = round(self.tokens_per_step / context) * context or context
            why = f"which is not a multiple of data.context ({context})"
            yield Problem(why, "training.tokens_per_step", self.tokens_per_step, f"{near} is")
            return
        steps, wsd = self.total_steps, settings.schedule == "wsd"
        warmup, decay = settings.warmup(steps), settings.decay(steps) if wsd else 0
        if warmup > steps:
            yield wrong("warmup_steps", f"but the run has only {steps} steps", "give a share of the run, such as 0.05")
        elif warmup + decay > steps:
            why = f"and training.warmup_steps {settings.warmup_steps:g} are more than the {steps} steps of the run"
            yield wrong("decay_steps", why, "give shares of the run, such as 0.2 and 0.05")
        elif wsd and settings.decay_steps < 1 and decay >= steps:
            why = f"but the run has too few steps ({steps}) for any before the decay"
            yield wrong("decay_steps", why, "lengthen the run, or set schedule: linear")
        elif settings.trunk is not None and decay == steps:
            yield wrong("trunk", "but all steps of the run are its decay", "lower training.decay_steps")
        else:
            constant = range(max(1, warmup), steps - decay + 1)
            for length, start in ((each, self.decay_start(each)) for each in settings.branches):
                if start not in constant:
                    why = f"has {length}, a run that decays from step {start}, but the rate here is constant from step"
                    why += f" {warmup} to {steps - decay} only"
                    yield Problem(why, "training.branches", fix="remove that length, or lengthen this run")

    def _problems_of_stages(self) -> Iterator[Problem]:
        data, name = self.data, "data.context_stages"
        stages = getattr(data, "context_stages", {})
        if not isinstance(data, CorpusData) or not stages:
            return
        whole = all(0 < context < data.context and not data.context % context for context in stages)
        if not whole or list(stages) != sorted(stages):
            example = f"such as {{{data.context // 2}: 0.5}}"
            why = f"but stages are growing contexts that divide data.context ({data.context}), {example}"
            yield Problem(why, name, stages)
        elif not all(share > 0 for share in stages.values()) or sum(stages.values()) >= 1:
            yield Problem("but shares must be above 0 and leave some of the run for data.context", name, stages)
        elif len(self.windows) <= len(stages) or not all(examples for examples, _ in self.windows):
            yield Problem(f"but the run has only {self.total_steps} steps, too few for these shares", name, stages)
        elif any(each.name != "causal" for each in self.objectives):
            why = "divides windows, which only the objective causal allows"
            yield Problem(why, name, fix="remove it")
        elif data.start_at_documents:
            why = "divides windows, whose parts do not begin with documents as data.start_at_documents asks"
            yield Problem(why, name, fix="remove one of the two")
        elif self.training.branches or self.training.trunk is not None:
            yield Problem("are shares of a run, so runs that share a trunk cannot have them", name, fix="remove it")
        elif (predictor := getattr(self.model, "context_predictor", None)) and predictor.chunk_size > min(stages):
            yield Problem(f"more than the first of {name}", "model.context_predictor.chunk_size", predictor.chunk_size)

    def _problems_of_data(self) -> Iterator[Problem]:
        """Contradictions between data, objective, measurements and the kind of model."""
        data, model, name = self.data, self.model, self.objective.name
        if data.gives != model.reads:
            family = getattr(model, "family", None)
            own = getattr(model, "pretrained", None) or (f"model.family {family}" if family else model.called)
            if data.gives != "text":
                kinds = [name for name, kind in model_kinds().items() if kind.reads == data.gives]
                fix = f"set model.family to {' or '.join(reversed(kinds))}"
                yield Problem(f"needs one of its own models, not {own}", data.gives, fix=fix)
            else:
                why = f"{own} is a model for {model.reads}, not for a corpus"
                yield Problem(why, fix="choose another family")
        yield from data.problems(self)
        if not isinstance(data, CorpusData):
            return
        for single in self.singles:
            yield from single.problems(self)
        for section in data.sections.values():
            yield from section.problems(self)
        if data.start_at_documents and name != "causal":
            why = f"does not apply to the objective {name!r}"
            yield Problem(why, "data.start_at_documents", True, "remove it, or set objective: causal")

    def _problems_of_model(self) -> Iterator[Problem]:
        model = self.model
        if self.training.learning_rate is None and model.learning_rate is None:
            why = "is missing: such a model has no default rate"
            yield Problem(why, "training.learning_rate", fix=f"{model.usual_rate} is usual")
        yield from model.problems(self)
        if self.training.parametrization == "mup":
            yield from _problems_of_mup(model, self.training)

    @property
    def objectives(self) -> list[Objective]:
        """The objective of the run, and those of the sections of ``data``."""
        return [self.objective, *(each for section in self.data.sections.values() for each in section.objectives)]

    @property
    def singles(self) -> list[Any]:
        """The objectives of the run, those of mixtures one by one."""
        return [single for each in self.objectives for single in each.singles]

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, over all processes and micro-batches: ``data.context`` for each example."""
        settings = self.training
        if settings.examples_per_step is not None:
            return settings.examples_per_step * self.data.context
        return settings.tokens_per_step or 8192

    @property
    def examples_per_step(self) -> int:
        """Windows, sentences or samples per optimizer step."""
        return self.tokens_per_step // self.data.context

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        settings = self.training
        if settings.epochs is not None:
            return -(-settings.epochs * (self.data.samples or 0) // self.examples_per_step)
        return self._in_steps(settings.steps or settings.tokens or 0)

    def _in_steps(self, length: int) -> int:
        """``length`` in steps: tokens if the length of the run is given in tokens."""
        return length if self.training.tokens is None else -(-length // self.tokens_per_step)

    def with_training(self, **changed: Any) -> "Recipe":
        """The recipe with other settings of ``training``, which are not checked."""
        return self.model_copy(update={"training": self.training.model_copy(update=changed)})

    def of_length(self, tokens: int) -> "Recipe":
        """The recipe with another length, unchecked."""
        return self.with_training(tokens=tokens, steps=None, epochs=None)

    def decay_start(self, length: int | None = None) -> int:
        """The optimizer steps before the decay of the schedule ``wsd``, or those of a run of ``length`` with the same trunk."""
        steps = self.total_steps if length is None else self._in_steps(length)
        return max(0, steps - self.training.decay(steps))

    @property
    def trunk_checkpoint(self) -> Path | None:
        """The checkpoint of the trunk where this run begins to decay, whether it exists or not; None without a trunk."""
        trunk = self.training.trunk
        return None if trunk is None else RunFolder(trunk).checkpoints / f"step-{self.decay_start()}"

    @property
    def branch_steps(self) -> set[int]:
        """The steps at which the branches of this run begin to decay."""
        return {self.decay_start(length) for length in self.training.branches}

    def saves_at(self, step: int) -> bool:
        """Whether a run that is never stopped has a checkpoint of a step; with patience, also of each lowest loss."""
        if self.training.trunk is not None and step <= self.decay_start():
            return False  # it is the trunk's
        return step % self.training.save_every == 0 or step == self.total_steps or step in self.branch_steps

    @property
    def windows(self) -> list[tuple[int, int]]:
        """The examples of each stage of the run, and the context of the windows that they are divided into."""
        stages: dict[int, float] = getattr(self.data, "context_stages", {})
        result, share, begin = [], 0.0, 0
        for context, part in stages.items():
            share += part
            end = round(share * self.examples) // self.examples_per_step * self.examples_per_step
            result.append((end - begin, context))
            begin = end
        return [*result, (self.examples - begin, self.data.context)]

    @property
    def examples(self) -> int:
        """Examples of the whole run."""
        return self.total_steps * self.examples_per_step

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole run."""
        return self.examples * self.data.context

    @property
    def cut(self) -> Cut:
        """The settings for cutting a corpus's documents into windows."""
        assert isinstance(self.data, CorpusData)
        return self.data.cut

    @property
    def folder(self) -> Path:
        """The run folder."""
        return expanded(self.output or f"runs/{self.name}-seed{self.seed}")

    @property
    def learning_rate(self) -> float:
        """The maximum learning rate of the schedule; under µP that of the base width."""
        own = self.model.learning_rate
        if self.training.parametrization == "mup":
            own = adamw_rate(self.training.mup_base_width)
        rate = self.training.learning_rate or own
        assert rate is not None
        return rate

    @property
    def rates_in_words(self) -> str:
        """The maximum learning rates, each with its optimizer where there are two."""
        if self.training.optimizer != "muon":
            return f"learning rate {self.learning_rate:g}"
        return f"learning rates {self.training.muon_learning_rate:g} (Muon) and {self.learning_rate:g} (AdamW)"

    def resolved(self) -> dict[str, Any]:
        """All settings with defaults as plain values; the batch size in tokens, and epochs as steps."""
        data = self.model_dump(mode="json", exclude={"output"})
        batch = {"tokens_per_step": self.tokens_per_step, "examples_per_step": None}
        data["training"] |= {"learning_rate": self.learning_rate, **batch}
        if self.training.epochs is not None:
            data["training"] |= {"steps": self.total_steps, "epochs": None}
        return data


def validation_loss(recipe: Recipe, summary: Mapping[str, Any]) -> str | None:
    """The validation loss of a finished run with its unit; None if nothing was held out."""
    unit = "pair" if recipe.objective.whole_steps else recipe.model.loss_unit
    return None if (loss := summary["validation_loss"]) is None else f"{loss:.4f} nats per {unit}"


def _problems_of_mup(model: Any, settings: TrainingSettings) -> Iterator[Problem]:
    name, base_width = "training.parametrization", settings.mup_base_width
    if model.at_width is None:
        why = f"but only new models of the families {', '.join(SIZES)} have this parametrization"
        yield Problem(why, name, "mup", "set it to standard")
    elif base_width * model.shape.heads % model.shape.width:
        head = model.shape.width // model.shape.heads
        why = f"but heads keep their width in every size, here {head} channels"
        yield Problem(why, "training.mup_base_width", base_width, f"choose a multiple of {head}")
    elif settings.learning_rate is None and base_width not in MEASURED_WIDTHS:
        why, measured = "a width without a measured learning rate", ", ".join(map(str, MEASURED_WIDTHS))
        yield Problem(
            why, "training.mup_base_width", base_width, f"give training.learning_rate, or choose one of {measured}"
        )


def load_recipe(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
) -> Recipe:
    """Read a recipe.

    Args:
        recipe: a YAML file, the name of a recipe that comes with the package, or the settings themselves.
        overrides: ``section.key=value`` settings that replace the recipe's, or dotted key -> value.
        output: the run folder, instead of the file's; by default that of the run whose ``recipe.yaml`` is given.

    Raises:
        ConfigError: all problems of the recipe, in one message.
    """
    folder = None
    if isinstance(recipe, str | Path):
        path = recipe_path(recipe)
        values, name, where = read_yaml(path), path.stem, f"the recipe {recipe}"
        run = RunFolder(path.parent)
        folder = run.path if path.name == run.recipe_file.name and run.environment_file.is_file() else None
    elif not isinstance(recipe, Recipe | Mapping):
        raise ConfigError(Problem("but must be a recipe's path or name, or its settings", "recipe", recipe))
    else:
        values = (recipe.resolved() | {"output": recipe.output}) if isinstance(recipe, Recipe) else dict(recipe)
        name, where = "run", "the recipe"
    data = with_output(with_overrides(values, overrides or []), overrides, output)
    if folder is not None:
        data.setdefault("output", str(folder))
    data.setdefault("name", name)
    return validate(Recipe, data, where)
