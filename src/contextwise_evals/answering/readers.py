"""Reader: a causal language model that answers prompts with transformers' ``generate()``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from contextwise.measures import Sampling
from contextwise.models.decoding import generate
from contextwise.models.rope import frequencies_for
from contextwise.settings import CheckpointError


class RefuseNaN(LogitsProcessor):
    """Raises a :class:`CheckpointError` where a logit is NaN: the likeliest token would be the first, and so just wrong."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if torch.isnan(scores).any():
            raise CheckpointError(
                "the model's logits are not numbers (NaN), so it has no answers: its weights are damaged, or its number "
                "format is too narrow (try dtype float32)"
            )
        return scores


class Written(StoppingCriteria):
    """Rows of which the part behind ``prompt`` tokens holds one of some texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: int, texts: Sequence[str]) -> None:
        self.tokenizer, self.prompt, self.texts = tokenizer, prompt, texts

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor | None, **_: Any) -> torch.BoolTensor:
        answers = self.tokenizer.batch_decode(input_ids[:, self.prompt :])
        found = [any(text in answer for text in self.texts) for answer in answers]
        return torch.tensor(found, device=input_ids.device)  # type: ignore[return-value]


class ModelReader:
    """Writes answers to prompts, several at a time; greedy ones do not depend on the other prompts.

    Where rotary frequencies follow the length (dynamic NTK), they are those of the longest prompt and its answer from the
    first token on, so that cached keys and new queries are rotated alike. The model is in evaluation mode.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer
        ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.pad: int = next(token for token in ends if token is not None)

    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int, until: Sequence[str] = ()) -> list[str]:
        """The answers as texts; a row may end, but is not cut, at a text of ``until``. Errors as for :meth:`write`."""
        return self.tokenizer.batch_decode(self.write(prompts, new_tokens, until=until), skip_special_tokens=True)

    @torch.no_grad()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        until: Sequence[str] = (),
        stops: Sequence[int] = (),
        opening: Sequence[int] = (),
        sampling: Sampling | None = None,
    ) -> list[list[int]]:
        """The token ids of the answers, with those behind an end; a CheckpointError if the logits are NaN.

        Args:
            stops: tokens that end an answer; by default the model's own.
            opening: what an encoder-decoder's decoder begins with; empty for a decoder.
            sampling: how tokens are chosen; by default always the likeliest.
        """
        rows = [torch.tensor(prompt) for prompt in prompts]
        # Generation continues at the right end of a decoder's input; an encoder counts its positions from the left end.
        side = "right" if opening else "left"
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad, padding_side=side)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
        device, start = self.model.device, len(opening) or ids.shape[1]
        options: dict[str, Any] = {"max_new_tokens": new_tokens, "pad_token_id": self.pad, "repetition_penalty": 1.0}
        options |= {"logits_processor": LogitsProcessorList([RefuseNaN()])}
        options |= (sampling or Sampling(greedy=True)).arguments()
        if until:
            options["stopping_criteria"] = StoppingCriteriaList([Written(self.tokenizer, start, until)])
        if stops:
            options["eos_token_id"] = list(stops)
        if opening:
            options["decoder_input_ids"] = torch.tensor([list(opening)] * len(rows)).to(device)
        with frequencies_for(self.model, ids.shape[1] + new_tokens):
            out = generate(self.model, ids.to(device), attention_mask=mask.to(device), **options)
        return out[:, start:].tolist()
