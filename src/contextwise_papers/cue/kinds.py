"""CUE's kinds of models in recipes: a CUE model, built in stages, and the unigram autoencoder of its proxies."""

from collections.abc import Callable, Container, Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from contextwise.models.sizes import OUR_SIZES
from contextwise.settings import ConfigError, Problem
from contextwise.training import ModelSettings, NewModel, Width
from contextwise.training.settings import VocabSize, known_size
from contextwise_papers.cue.settings import TRAINED, AnyStage, ContextSettings, JointStage, ProxyStage, Stage, Started


class CueModel(ModelSettings):
    """A sentence model conditioned on contexts, built from the parts of earlier runs."""

    called = "a CUE model"
    registers = ("contextwise_papers.cue.spec",)
    usual_rate = "1e-3"

    cue: AnyStage

    @property
    def starts(self) -> dict[str, str]:  # type: ignore[override]
        names = ("start", "sentence_encoder", "autoencoder", "text_encoder")
        named = {f"model.cue.{name}": getattr(self.cue, name, None) for name in names}
        return {name: value for name, value in named.items() if value and not value.startswith("trained:")}

    @classmethod
    def claims(cls, values: dict[str, Any]) -> bool:
        return "cue" in values

    @property
    def trained(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return TRAINED[self.cue.stage]

    def sources(self, recipe: Any, known: Container[str]) -> dict[str, str]:
        from contextwise_papers.cue.encoding import TextSource
        from contextwise_papers.cue.stages import text_choice

        sources = super().sources(recipe, known)
        # A text encoder may be the default's or that of the starting run; one of random weights has a vocabulary.
        name = "model.cue.text_encoder"
        of_start = isinstance(self.cue, Started) and "model.cue.start" in known and name not in sources
        if recipe.data.contexts is not None and name not in known and not of_start:
            sources[name] = TextSource.parse(text_choice(recipe)["name"]).folder
        return sources

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if recipe.data.gives == "text":
            yield from _problems_of_sentences(recipe, "model.cue")
            yield from _problems_of_stage(self.cue, recipe.data.contexts)

    def planned(self, recipe: Any, configs: Callable[[str], Any], vocab_size: int | None) -> Any:
        from contextwise_papers.cue.encoding import TextSource, text_config
        from contextwise_papers.cue.stages import cue_config, text_choice

        if recipe.data.contexts is None:
            return cue_config(recipe, None, configs)
        about = text_choice(recipe, configs)
        encoder = text_config(about["name"])
        about["width"] = encoder.get_text_config().hidden_size
        if TextSource.parse(about["name"]).trained:
            about["model"] = encoder.to_diff_dict()
        return cue_config(recipe, about, configs)

    def freeze(self, model: Any) -> None:
        from contextwise_papers.cue.stages import freeze

        freeze(model, self.cue.stage)

    @property
    def tags(self) -> list[str]:
        return ["cue"]

    def usage(self, config: Any) -> list[str]:
        from contextwise_papers.cue.spec import usage

        return usage(config)

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        raise ConfigError(
            "model.cue is built from the parts of earlier runs, so its size is not known in advance; `contextwise model "
            "parameters` counts it"
        )

    def start(self, recipe: Any, config: Any) -> Any:
        from contextwise_papers.cue.stages import starting_model

        return starting_model(self.cue, config)


class LSTMModel(NewModel):
    """An LSTM language model of a named size or given dimensions, with random weights (CUE, Section 6.4)."""

    called = "the family lstm"
    registers = ("contextwise_papers.cue.spec",)
    kind = "decoder"
    sizes: ClassVar[Any] = {"lstm": OUR_SIZES}

    family: Literal["lstm"]

    def problems(self, recipe: Any) -> Iterator[Problem]:
        yield from super().problems(recipe)
        data = recipe.data
        if data.gives == "text" and recipe.cut.separate_documents and data.cross_documents:
            which, given = ("separate_documents", True) if data.separate_documents else ("metadata.form", "prepend")
            why = "but an LSTM carries its state into the next document of a window"
            yield Problem(why, f"data.{which}", given, "set data.cross_documents=false")

    @field_validator("feed_forward")
    @classmethod
    def _has_no_such_layers(cls, width: int | None) -> int | None:
        if width is not None:
            raise ConfigError("given, but lstm has no such layers; remove it")
        return width

    def stock(self, vocab_size: int, positions: int, end_of_text: int | None) -> Any:
        from contextwise_papers.cue.lstm import LSTMConfig

        layers = self.shape.layers + self.extra_layers
        return LSTMConfig(vocab_size, self.shape.width, layers, bos_token_id=end_of_text, eos_token_id=end_of_text)


class AutoencoderModel(ModelSettings):
    """CUE's unigram autoencoder; the layers around the code are 8 times as wide (CUE, Section 4.2.1: 128 x 16 x 128)."""

    called = "the family unigram_autoencoder"
    registers = ("contextwise_papers.cue.spec",)
    learning_rate: ClassVar[float] = 1e-3
    loss_unit = "sentence"
    loader = ("AutoModel", None)

    family: Literal["unigram_autoencoder"]
    vocab_size: VocabSize | None = Field(default=None, description="vocabulary size; by default the tokenizer's")
    width: Width = Field(default=16, description="width of the code")

    def problems(self, recipe: Any) -> Iterator[Problem]:
        if recipe.data.gives == "text":
            yield from _problems_of_sentences(recipe, f"model.family {self.family}")

    def config(self, recipe: Any, vocab_size: int | None, end_of_text: int | None) -> Any:
        from contextwise_papers.cue.config import UnigramConfig

        size = known_size(self.vocab_size, vocab_size)
        return UnigramConfig(size, widths=[8 * self.width, self.width], eos_token_id=end_of_text)


def _problems_of_sentences(recipe: Any, what: str) -> Iterator[Problem]:
    if recipe.objective.name != "sentence":
        yield Problem(f"{what} is trained on single sentences", fix="set objective: sentence")


def _problems_of_stage(stage: Stage, contexts: ContextSettings | None) -> Iterator[Problem]:
    if isinstance(stage, ProxyStage) and contexts is not None:
        why = "is given, but stage proxy trains the decoder without contexts"
        yield Problem(why, "data.contexts", fix="remove it")
    if isinstance(stage, Started) and contexts is None:
        why = f"is missing: stage {stage.stage} needs columns, or previous_sentence: true"
        yield Problem(why, "data.contexts")
    encoder = getattr(stage, "text_encoder", None)
    if encoder is not None and encoder.startswith("trained:") and not isinstance(stage, JointStage):
        why = f"but the stage {stage.stage} trains no text encoder"
        yield Problem(why, "model.cue.text_encoder", encoder, "remove it, or name a pretrained one")
    if isinstance(stage, JointStage) and contexts is None:
        for name in ("text_encoder", "pooling", "context_dropout"):
            if getattr(stage, name):
                yield Problem("has no effect without data.contexts", f"model.cue.{name}", fix="remove it")
