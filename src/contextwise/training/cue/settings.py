"""``model.cue`` of a recipe: which stage of a CUE model's life is trained, from what, and how large its parts are."""

from typing import Any, Literal

from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError

Stage = Literal["joint", "adapt", "proxy", "swap"]

NEEDED: dict[str, tuple[str, ...]] = {
    "joint": ("sentence_encoder",),
    "adapt": ("start",),
    "proxy": ("sentence_encoder", "autoencoder"),
    "swap": ("start", "sentence_encoder"),
}
"""What a stage cannot do without."""

_TEXTS = ("text_encoder", "pooling", "text_tokens")
_CONTEXT_ENCODER = ("context_layers", "context_heads", "context_feed_forward")
_DECODER = ("decoder", "decoder_layers", "decoder_heads", "sentence_inputs", "head")
_PROXY = ("autoencoder", "noise")

FOREIGN: dict[str, tuple[str, ...]] = {
    "joint": ("start", "fresh_context_encoder", *_PROXY),
    "adapt": ("sentence_encoder", *_DECODER, *_PROXY),
    "proxy": ("start", "fresh_context_encoder", "context_dropout", *_TEXTS, *_CONTEXT_ENCODER),
    "swap": ("fresh_context_encoder", "context_dropout", *_CONTEXT_ENCODER, *_PROXY),
}
"""What says nothing in a stage, or comes from the run that it starts from."""

PURPOSES = {
    "sentence_encoder": "a sentence model: a run, a folder or a name on the Hub",
    "start": "the CUE run whose parts it goes on from",
    "autoencoder": "a run of model.family unigram_autoencoder",
}

TRAINED: dict[str, tuple[str, ...]] = {
    "joint": ("decoder", "context_encoder"),
    "adapt": ("context_encoder",),
    "proxy": ("decoder", "proxy"),
    "swap": ("decoder",),
}
"""The parts that a stage trains (CUE, Table 1 and Section 4); of the proxy only its projection. All else is frozen."""


class CueSettings(Settings):
    """A stage of a CUE model's life (CUE, Sections 3 and 4). What is not given comes from ``start``, or is the paper's."""

    stage: Stage = Field(
        description="joint: decoder and context encoder; adapt: the context encoder alone; proxy: the decoder, without any "
        "context; swap: a new decoder on another sentence encoder"
    )
    sentence_encoder: str | None = Field(None, description=PURPOSES["sentence_encoder"])
    start: str | None = Field(None, description=PURPOSES["start"])
    fresh_context_encoder: bool = Field(
        False, description="adapt with a context encoder that is drawn anew, instead of the start's"
    )
    text_encoder: str | None = Field(
        None,
        description="frozen encoder of the contexts; the start's, or distilbert-base-cased, if not given",
    )
    pooling: Literal["cls", "mean"] | None = Field(None, description="of the text encoder; cls if not given")
    text_tokens: int | None = Field(None, ge=3, description="where contexts are cut; the encoder's own limit")
    width: int | None = Field(None, ge=1, description="of e_cue; the sentence encoder's if not given")
    context_layers: int | None = Field(None, ge=0, description="blocks over the set of contexts; 2")
    context_heads: int | None = Field(None, ge=1, description="4 if not given")
    context_feed_forward: int | None = Field(None, ge=1, description="4 times the width if not given")
    context_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of the contexts withheld in training, each by itself"
    )
    decoder: Literal["transformer", "concatenate"] | None = Field(None, description="transformer")
    decoder_layers: int | None = Field(None, ge=1, description="6 if not given")
    decoder_heads: int | None = Field(None, ge=1, description="4 if not given")
    sentence_inputs: bool | None = Field(
        None, description="false: nothing but the contexts predicts (Table 4); true"
    )
    head: Literal["sentence_encoder", "random"] | None = Field(
        None,
        description="what the decoder's vocabulary head starts as: a copy of the sentence encoder's, where their widths agree, "
        "or drawn anew; sentence_encoder",
    )
    autoencoder: str | None = Field(None, description=PURPOSES["autoencoder"])
    noise: float = Field(0.0, ge=0, description="sigma of the noise on proxies (Eq. 7)")

    @model_validator(mode="after")
    def _fits_its_stage(self) -> "CueSettings":
        missing = [name for name in NEEDED[self.stage] if getattr(self, name) is None]
        if missing:
            raise ConfigError(
                f"stage {self.stage} needs {missing[0]}, which is missing; name {PURPOSES[missing[0]]}"
            )
        given = [name for name in FOREIGN[self.stage] if self._given(name)]
        if given:
            raise ConfigError(f"{', '.join(given)} says nothing in stage {self.stage}; leave it out")
        if self.decoder == "concatenate":
            layered = [name for name in ("decoder_layers", "decoder_heads") if self._given(name)]
            if layered:
                raise ConfigError(f"a decoder that concatenates has no {layered[0]}; leave it out")
        return self

    def _given(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default

    def chosen(self, **defaults: Any) -> dict[str, Any]:
        """The settings of these names, with the defaults in place of those that are not given."""
        own = {name: getattr(self, name) for name in defaults}
        return {name: defaults[name] if value is None else value for name, value in own.items()}
