"""Text generation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.evaluation.kernel.subject import positions
from contextwise.models.decoding import generate
from contextwise.models.loading import load_config
from contextwise.models.spec import spec_of
from contextwise.objectives import build_objective

LOWEST_TEMPERATURE = 1e-3
"""Logits that are divided by less overflow in half precision."""


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token; raises ConfigError for a value out of range.

    Attributes:
        temperature: divides the logits; below 1 favours likely tokens.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the likeliest tokens that together have this probability only.
        seed: the same seed produces the same text on the same machine.
        greedy: always choose the likeliest token; the other settings then have no effect.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.temperature == 0:
            object.__setattr__(self, "greedy", True)
        elif not LOWEST_TEMPERATURE <= self.temperature <= 1 / LOWEST_TEMPERATURE:
            raise ConfigError(
                f"the temperature is {self.temperature}, but must be 0, for the likeliest token, or lie between "
                f"{LOWEST_TEMPERATURE} and {1 / LOWEST_TEMPERATURE:g}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top-k is {self.top_k}, but must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p is {self.top_p}, but must lie between 0 and 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"the seed is {self.seed}, but must be a whole number from 0 on")

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``generate()``; they override the model's own sampling settings."""
        if self.greedy:
            return {"do_sample": False, "num_beams": 1}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return {"do_sample": True, "num_beams": 1, **drawn}


def reads_sentences(source: str | Path) -> bool:
    """Whether a model was trained on separate sentences, by its kind or by the objective of its run."""
    if spec_of(load_config(source)).reads_sentences:
        return True
    run = RunFolder(source)
    objective = run.recipe().get("objective") if run.recipe_file.is_file() else None
    return objective is not None and build_objective(**objective).reads_sentences


def start_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id of the token after which documents begin; None if the tokenizer has none."""
    return tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, starts_sentence: bool = False) -> torch.Tensor:
    """Encode a prompt as token ids (1, T); an empty prompt becomes the end-of-text token, after which documents begin.

    With ``starts_sentence`` that token precedes any prompt, as in the training of a sentence model.

    Raises:
        ConfigError: the prompt is empty and the tokenizer has no end-of-text token.
    """
    ids = tokenizer(prompt, add_special_tokens=not starts_sentence).input_ids if prompt else []
    if starts_sentence and tokenizer.eos_token_id is not None:
        ids = [tokenizer.eos_token_id, *ids]
    if not ids:
        if (start := start_token(tokenizer)) is None:
            raise ConfigError(
                "the prompt is empty, and the model has no end-of-text token to start from; give some text"
            )
        ids = [start]
    return torch.tensor([ids])


def allowed_new_tokens(model: PreTrainedModel, prompt_tokens: int, wanted: int) -> int:
    """Number of new tokens, at most ``wanted``, for which the model has positions after a prompt; ConfigError for none."""
    if wanted < 1:
        raise ConfigError(f"{wanted} tokens were asked for; ask for at least 1")
    limit = positions(model.config)
    if limit is None:
        return wanted
    if prompt_tokens >= limit:
        raise ConfigError(
            f"the prompt has {prompt_tokens} tokens, but the model has only {limit} positions for prompt and text; shorten it"
        )
    return min(wanted, limit - prompt_tokens)


@torch.no_grad()
def sample_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str = "",
    *,
    max_new_tokens: int = 100,
    sampling: Sampling | None = None,
    samples: int = 1,
    streamer: BaseStreamer | None = None,
    starts_sentence: bool = False,
    contexts: dict[str, torch.Tensor] | None = None,
) -> list[str]:
    """Continue a prompt to the end-of-text token, to ``max_new_tokens``, or to the last position.

    Args:
        prompt, starts_sentence: as for :func:`encode_prompt`.
        samples: number of texts; the first does not depend on it.
        streamer: receives the tokens of each text as they are generated, beginning with the prompt's.
        contexts: further inputs of ``generate()``, of a model that takes contexts.

    Returns:
        The continuations, without the prompt and without special tokens.

    Raises:
        ConfigError: a setting is out of range, or the prompt is too long.
    """
    sampling = sampling or Sampling()
    ids = encode_prompt(tokenizer, prompt, starts_sentence).to(model.device)
    count = allowed_new_tokens(model, ids.shape[1], max_new_tokens)
    torch.manual_seed(sampling.seed)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    texts = []
    for _ in range(samples):
        out = generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            pad_token_id=padding,
            streamer=streamer,
            **sampling.arguments(),
            **(contexts or {}),
        )
        texts.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    return texts
