"""Models for objectives that a plain decoder does not train: an encoder (BERT), an encoder-decoder (T5), multi-token heads
(the section ``model.multi_token``; objectives, Section 6.2.6)."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from contextwise.models.sizes import OUR_SIZES
from contextwise.settings import Problem
from contextwise.training import ModelSection, NewModel


class EncoderModel(NewModel):
    """A stock encoder of a named size or given dimensions, with random weights."""

    called = "the family bert"
    registers = ("contextwise_papers.objectives.specs",)
    kind = "encoder"
    sizes: ClassVar[Any] = {"bert": OUR_SIZES}

    family: Literal["bert"]

    def stock(self, vocab_size: int, positions: int, end_of_text: int | None) -> Any:
        from transformers import BertConfig

        shape = self.shape
        return BertConfig(
            vocab_size=vocab_size,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers + self.extra_layers,
            num_attention_heads=shape.heads,
            intermediate_size=self.feed_forward or 4 * shape.width,
            max_position_embeddings=positions,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            bos_token_id=end_of_text,
            eos_token_id=end_of_text,
        )


class EncoderDecoderModel(NewModel):
    """A stock encoder-decoder of a named size or given dimensions, with as many layers in the encoder as in the decoder."""

    called = "the family t5"
    registers = ("contextwise_papers.objectives.specs",)
    kind = "encoder-decoder"
    sizes: ClassVar[Any] = {"t5": OUR_SIZES}

    family: Literal["t5"]

    def stock(self, vocab_size: int, positions: int, end_of_text: int | None) -> Any:
        from transformers import T5Config

        shape, layers = self.shape, self.shape.layers + self.extra_layers
        # As for documents, the end-of-text token also begins the decoder's input. Positions are relative, of any number.
        return T5Config(
            vocab_size=vocab_size,
            d_model=shape.width,
            d_kv=shape.width // shape.heads,
            d_ff=self.feed_forward or 4 * shape.width,
            num_heads=shape.heads,
            num_layers=layers,
            num_decoder_layers=layers,
            dropout_rate=0.0,
            decoder_start_token_id=end_of_text,
            eos_token_id=end_of_text,
            pad_token_id=end_of_text,
        )


class MultiTokenSettings(ModelSection):
    """Multi-token heads; without this section only the next-token head is trained."""

    about: ClassVar[str] = "heads for several future tokens"
    arms: ClassVar[dict[str, list[str]]] = {"multitoken": ["model.multi_token.future_tokens=4"]}
    registers = ("contextwise_papers.objectives.multitoken.spec",)

    future_tokens: int = Field(default=4, ge=1, le=256)
    head: Literal["layer", "linear"] = "layer"

    def problems(self, recipe: Any) -> Iterator[Problem]:
        window = min([recipe.data.context, *(getattr(recipe.data, "context_stages", None) or {})])
        if self.future_tokens > window:
            why = f"but windows have {window} tokens, in which further heads have no target"
            fix = f"take at most {window}"
            yield Problem(why, "model.multi_token.future_tokens", self.future_tokens, fix)

    def compose(self, config: Any) -> Any:
        from contextwise_papers.objectives.multitoken import MultiTokenConfig

        return MultiTokenConfig(backbone_config=config, **self.model_dump())
