"""Conversations with a causal language model, for the questions of MT-Bench (ContextLM, Section 3.4)."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.evaluation.generation import allowed_new_tokens
from contextwise.measures import Sampling
from contextwise.settings import ConfigError
from contextwise_evals.answering.prompts import apply_template
from contextwise_evals.answering.readers import ModelReader
from contextwise_papers.objectives.alpaca import CHAT_TEMPLATE


class Speaker:
    """Holds conversations; each turn reads the whole of its own. ``template``: as of :class:`.Answers`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str = "auto") -> None:
        self.tokenizer, self.reader = tokenizer, ModelReader(model, tokenizer)
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

    def answer(
        self, turns: Sequence[str], max_new_tokens: int, sampling: Sampling
    ) -> tuple[list[str], list[str | None]]:
        """Answer the turns of a conversation, one after the other: a text for each, and what went wrong, or None.

        A turn that is too long for the model's positions has an empty text, as do those behind it.
        """
        messages: list[dict[str, str]] = []
        texts: list[str] = []
        torch.manual_seed(sampling.seed)
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            ids = self.prompt(messages)
            try:
                count = allowed_new_tokens(self.reader.model, len(ids), max_new_tokens)
            except ConfigError as error:
                left = len(turns) - len(texts)
                return texts + [""] * left, [None] * len(texts) + [str(error)] * left
            (written,) = self.reader.write([ids], count, stops=self.ends, sampling=sampling)
            texts.append(self.tokenizer.decode(written, skip_special_tokens=True).strip())
            messages.append({"role": "assistant", "content": texts[-1]})
        return texts, [None] * len(texts)
