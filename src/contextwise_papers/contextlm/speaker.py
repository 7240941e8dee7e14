"""Conversations with a causal language model, for the questions of MT-Bench (ContextLM, Section 3.4)."""

from collections.abc import Sequence
from itertools import takewhile

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

from contextwise.base.errors import ConfigError
from contextwise.evaluation.generation import allowed_new_tokens
from contextwise.evaluation.sampling import Sampling
from contextwise.models.contextlm.cache import ChunkLayer, ContextState
from contextwise.models.families import CACHE
from contextwise.models.prefix import prompt_form
from contextwise.models.rope import follows_length, frequencies_for, rotary_modules
from contextwise_evals.answering.prompts import apply_template
from contextwise_evals.answering.readers import answer_options, padding_token
from contextwise_papers.objectives.alpaca import CHAT_TEMPLATE

_CROPPED = (DynamicLayer, ChunkLayer, ContextState)


class Speaker:
    """Holds conversations. What the model has read stays in its key-value cache, and a later turn reads only what is new.

    Args:
        template: ``chat``: the tokenizer's own; ``alpaca``: the published prompt; ``auto``: its own, where it has one.
        reuse: False reads the whole conversation again at each turn.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str = "auto", reuse: bool = True
    ) -> None:
        self.model, self.tokenizer, self.pad = model, tokenizer, padding_token(tokenizer)
        # Frequencies that follow the length differ in a later turn, which cached keys cannot follow.
        # A prefix is read anew in each turn: its tokens see each other in both directions.
        causal = prompt_form(model.config) is None
        self.reuse = reuse and causal and not any(follows_length(module) for _, module in rotary_modules(model))
        if template == "chat" and tokenizer.chat_template is None:
            raise ConfigError("the model's tokenizer has no chat template; give the template alpaca")
        own = template != "alpaca" and tokenizer.chat_template is not None
        self.template = tokenizer.chat_template if own else CHAT_TEMPLATE
        ends = model.generation_config.eos_token_id
        ends = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
        self.ends = sorted({end for end in ends if end is not None})

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the next answer begins."""
        encoded = apply_template(
            self.tokenizer, list(messages), "give the template alpaca", chat_template=self.template, return_dict=True
        )
        return list(encoded["input_ids"])

    @torch.no_grad()
    def answer(
        self, turns: Sequence[str], max_new_tokens: int, sampling: Sampling
    ) -> tuple[list[str], list[str | None]]:
        """Answer the turns of a conversation, one after the other.

        Returns:
            A text for each turn; and for each what went wrong, or None. A turn that is too long for the model's positions
            has an empty text, as do those behind it.
        """
        messages: list[dict[str, str]] = []
        texts: list[str] = []
        cache: Cache | None = None
        read: list[int] = []
        torch.manual_seed(sampling.seed)
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            ids = self.prompt(messages)
            try:
                count = allowed_new_tokens(self.model, len(ids), max_new_tokens)
            except ConfigError as error:
                left = len(turns) - len(texts)
                return texts + [""] * left, [None] * len(texts) + [str(error)] * left
            rows = torch.tensor([ids], device=self.model.device)
            with frequencies_for(self.model, len(ids) + count):
                options = answer_options(count, self.pad, sampling) | {"eos_token_id": self.ends or None}
                options |= {CACHE: _common(cache, read, ids) if self.reuse else None}
                mask = torch.ones_like(rows)
                out = self.model.generate(rows, attention_mask=mask, return_dict_in_generate=True, **options)
            read, cache = out.sequences[0].tolist(), getattr(out, CACHE)
            texts.append(self.tokenizer.decode(read[len(ids) :], skip_special_tokens=True).strip())
            messages.append({"role": "assistant", "content": texts[-1]})
        return texts, [None] * len(texts)


def _common(cache: Cache | None, read: Sequence[int], ids: Sequence[int]) -> Cache | None:
    """The cache of ``read``, shortened to what ``ids`` begins with; None where nothing of it can be used.

    An answer's text may have other tokens when it is read again than those it was written with, so the two are compared. At
    least one token remains to be read: its logits choose the next.
    """
    if cache is None or not all(
        isinstance(layer, _CROPPED) and not getattr(layer, "is_sliding", False) for layer in cache.layers
    ):
        return None
    length = cache.get_seq_length()
    pairs = zip(read[:length], ids[:-1], strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if same == 0:
        return None
    cache.crop(same - length)
    return cache
