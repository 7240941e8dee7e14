"""The section ``data`` of a recipe: a corpus and how it is cut into windows, or a synthetic task."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.data.contexts import ContextSettings
from contextwise.data.synthetic import ParityData


class ReplaySettings(Settings):
    """Settings of the replay of an old corpus during training on a new one."""

    corpus: str = Field(description="folder of the old corpus, prepared with the same tokenizer")
    share: float = Field(0.1, gt=0, lt=1, description="share of the examples that come from it")


class CorpusData(Settings):
    """Settings of a corpus, and of how its documents are cut into windows."""

    corpus: str = Field(description="folder of a prepared corpus, a Zarr array, or a nanoGPT .bin file")
    split: str = "train"
    validation_split: str = "validation"
    tokens: int | None = Field(
        None, ge=1, description="train on the first tokens of the split only, repeated as often as needed"
    )
    context: int = Field(256, ge=1, description="training context: tokens per window")
    cross_documents: bool = Field(True, description="windows may hold parts of several documents")
    separate_documents: bool = Field(False, description="attention and positions stay inside a document")
    contexts: ContextSettings | None = Field(None, description="contexts of each sentence, for model.cue")
    verify: bool = Field(True, description="compare the corpus with its hashes before training")
    replay: ReplaySettings | None = Field(
        None, description="mixes an old corpus into the training, and validates on it"
    )
    watch: str | None = Field(
        None, description="folder of an old corpus to validate on, without training on it"
    )

    @field_validator("watch")
    @classmethod
    def _one_old_corpus(cls, watch: str | None, info: ValidationInfo) -> str | None:
        replay = info.data.get("replay")
        if watch is not None and replay is not None:
            raise ConfigError(
                f"given together with replay ({replay.corpus}), which is always watched; remove watch"
            )
        return watch


class SyntheticData(Settings):
    """Settings of a synthetic task, used instead of a corpus."""

    synthetic: ParityData = Field(description="settings of the task, such as bits and tasks")

    @property
    def context(self) -> int:
        """Tokens per sample."""
        return self.synthetic.length


def _variant(values: Any) -> str:
    synthetic = "synthetic" in values if isinstance(values, dict) else isinstance(values, SyntheticData)
    return "<synthetic data>" if synthetic else "<a corpus>"


AnyData = Annotated[
    Annotated[CorpusData, Tag("<a corpus>")] | Annotated[SyntheticData, Tag("<synthetic data>")],
    Discriminator(_variant),
]
