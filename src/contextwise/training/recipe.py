"""The recipe of a training run: what the YAML file may say, checked as a whole before anything is read or written."""

import contextlib
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, model_validator
from transformers import PreTrainedConfig

from contextwise.base.config import Settings, read_yaml, validate, with_overrides
from contextwise.base.errors import ConfigError, ContextwiseError
from contextwise.models.kinds import Kind, kind_of
from contextwise.models.loading import load_config
from contextwise.objectives import (
    UL2,
    AnyObjective,
    Causal,
    Cut,
    Mixture,
    NextSentence,
    PrefixLM,
    SentenceOrder,
)
from contextwise.training import parity
from contextwise.training.cue import checks as sentences
from contextwise.training.settings import (
    FAMILY_KINDS,
    DataSettings,
    Families,
    ModelSettings,
    TrainingSettings,
)


class Recipe(Settings):
    """One training run."""

    name: str = Field(
        pattern=r"^[^/\\]+$", description="names the run; runs of one name that differ in seed compare as one"
    )
    seed: int = Field(0, ge=0, lt=2**31)
    data: DataSettings
    objective: AnyObjective = Field(default_factory=Causal, description="a name, or a name with settings")
    model: ModelSettings = ModelSettings()
    training: TrainingSettings
    output: str = Field("", description="the run folder; runs/<name>-seed<seed> if not given")

    _in_samples = model_validator(mode="before")(parity.in_samples)
    _in_sentences = model_validator(mode="before")(sentences.in_sentences)

    @model_validator(mode="after")
    def _whole(self) -> "Recipe":
        parity.check(self)
        sentences.check(self)
        context, step = self.data.context, self.training.tokens_per_step
        if step % context:
            near = max(1, round(step / context)) * context
            raise ConfigError(
                f"training.tokens_per_step is {step}, which is no multiple of data.context ({context}); {near} is"
            )
        if self.model.max_context is not None and self.model.max_context < context:
            raise ConfigError(
                f"data.context is {context}, but the model has only {self.model.max_context} positions (model.max_context)"
            )
        predictor = self.model.context_predictor
        if predictor is not None and predictor.chunk_size > context:
            raise ConfigError(
                f"model.context_predictor.chunk_size is {predictor.chunk_size}, more than data.context ({context})"
            )
        if self.model.pretrained is not None and self.training.learning_rate is None:
            raise ConfigError(
                "training.learning_rate is missing: a pretrained model has no size with a rate of its own; 1e-4 is usual"
            )
        self._check_kind()
        if self.model.cue is not None:
            return self  # its parts come from earlier runs, which may be still to come
        # Heads that do not divide the width, a split behind the last layer: the configuration itself says so.
        config = self.model.build_config(256, context, None, has_pairs(self.objective))
        positions = getattr(config, "max_position_embeddings", None)
        if self.model.pretrained is not None and positions is not None and positions < context:
            raise ConfigError(
                f"data.context is {context}, but {self.model.pretrained} has only {positions} positions"
            )
        return self

    def _check_kind(self) -> None:
        """Refuse an objective that the model cannot serve."""
        name, wanted, settings = self.objective.name, self.objective.kind, self.model
        kind: Kind = (
            FAMILY_KINDS.get(settings.family, "decoder")
            if settings.pretrained is None
            else kind_of(load_config(settings.pretrained))
        )
        if wanted != kind:
            fitting = [
                family
                for family in get_args(Families)
                if FAMILY_KINDS.get(family, "decoder") == wanted and family not in parity.SHAPES
            ]
            own = settings.pretrained or f"model.family {settings.family}"
            mend = (
                f"set model.family to {' or '.join(fitting)}"
                if settings.pretrained is None
                else "name another model"
            )
            raise ConfigError(
                f"the objective {name!r} needs a model of another kind ({wanted}) than {own} ({kind}); {mend}, or choose "
                "another objective"
            )
        for section in ("context_predictor", "multi_token"):
            if getattr(settings, section) is None:
                continue
            if kind != "decoder":
                raise ConfigError(
                    f"model.{section} needs a decoder, but {settings.pretrained or settings.family} is none; leave it out"
                )
            if has_prefix(self.objective):
                raise ConfigError(
                    f"the objective {name!r} lets a prefix see itself in both directions, which model.{section} would carry "
                    "into predictions of that prefix; leave one of the two out"
                )

    @property
    def cut(self) -> Cut:
        """How the documents become windows."""
        return Cut(self.data.context, self.data.cross_documents, self.data.separate_documents)

    @property
    def folder(self) -> Path:
        """Where the run goes."""
        return Path(self.output or f"runs/{self.name}-seed{self.seed}")

    def model_config_for(self, vocab_size: int | None, end_of_text: int | None) -> PreTrainedConfig:
        """The model's configuration for a corpus with this vocabulary.

        Raises:
            ConfigError: the corpus says nothing of its vocabulary and neither does the recipe, or the recipe's is smaller.
        """
        if self.model.cue is not None:
            raise ConfigError(
                "model.cue is made of the parts of earlier runs, so its size is not known beforehand; `contextwise parameters` "
                "counts it"
            )
        if (
            self.model.pretrained is not None
        ):  # whose fit with the corpus is checked where its weights are loaded
            return self.model.build_config(0, self.data.context, end_of_text, has_pairs(self.objective))
        size = self.model.vocab_size or vocab_size
        if size is None:
            raise ConfigError(
                f"{self.data.corpus} comes without a tokenizer; give model.vocab_size (GPT-2's tokens fit 50304)"
            )
        if vocab_size is not None and size < vocab_size:
            raise ConfigError(
                f"model.vocab_size is {size}, but the corpus's tokenizer has {vocab_size} tokens"
            )
        return self.model.build_config(size, self.data.context, end_of_text, has_pairs(self.objective))

    @property
    def learning_rate(self) -> float:
        """The top of the schedule."""
        return self.training.learning_rate or self.model.shape.learning_rate

    def resolved(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain values."""
        data = self.model_dump(mode="json")
        data["training"]["learning_rate"] = self.learning_rate
        data.pop("output")
        return data


def single_objectives(objective: Any) -> list[Any]:
    """An objective, or those of a mixture."""
    return [part.objective for part in objective.parts] if isinstance(objective, Mixture) else [objective]


def has_prefix(objective: Any) -> bool:
    """Whether examples for a decoder have positions that see each other in both directions."""
    return any(
        isinstance(one, PrefixLM) or (isinstance(one, UL2) and one.model == "decoder")
        for one in single_objectives(objective)
    )


def has_pairs(objective: Any) -> bool:
    """Whether examples are pairs of segments, with a label."""
    return any(isinstance(one, NextSentence | SentenceOrder) for one in single_objectives(objective))


def with_newer_settings(kept: dict[str, Any]) -> dict[str, Any]:
    """A run's kept recipe with the settings that came after it was begun, at their defaults: what it was trained with."""
    with contextlib.suppress(ContextwiseError):
        return validate(Recipe, kept, "the run's recipe").resolved()
    return kept


def load_recipe(path: Path, overrides: list[str] | None = None, output: Path | None = None) -> Recipe:
    """Read a recipe file.

    Args:
        path: a YAML file.
        overrides: ``section.key=value`` settings that go before the file's.
        output: the run folder, before the file's.

    Raises:
        ConfigError: all that is wrong with it, in one message.
    """
    data = with_overrides(read_yaml(path), overrides or [])
    if output is not None:
        data["output"] = str(output)
    data.setdefault("name", path.stem)
    return validate(Recipe, data, f"the recipe {path}")
