"""Text generation, and its time per token."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from contextwise.base.errors import ConfigError
from contextwise.base.progress import progress_bar
from contextwise.base.runs import RunFolder
from contextwise.evaluation.kernel.subject import positions
from contextwise.models.decoding import generate
from contextwise.models.loading import load_config
from contextwise.models.spec import spec_of
from contextwise.objectives import build_objective

WARM_UP_TOKENS = 8

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
        if not LOWEST_TEMPERATURE <= self.temperature <= 1 / LOWEST_TEMPERATURE:
            raise ConfigError(
                f"the temperature is {self.temperature}, but must lie between {LOWEST_TEMPERATURE} and "
                f"{1 / LOWEST_TEMPERATURE:g}; for the likeliest token set greedy"
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


def measure_generation(
    models: dict[str, PreTrainedModel], prompt_tokens: int = 32, new_tokens: int = 128, repeats: int = 3
) -> dict[str, dict[str, Any]]:
    """Time the cached, greedy generation of one text with each model, in alternation and in turning order.

    The time does not depend on the content: the prompt is random ids, and end-of-text does not stop generation.
    Models with few positions get a shorter prompt and text.

    Args:
        models: name -> model in evaluation mode.
        prompt_tokens: length of the prompt; its forward pass is part of the time.
        repeats: measurements of each model, after a short warm-up that is not counted.

    Returns:
        name -> ``ms_per_token`` (median of the repeats), ``repeats`` (of each round), ``prompt_tokens``, ``new_tokens``,
        ``batch``.
    """
    limits = [limit for model in models.values() if (limit := positions(model.config)) is not None]
    room = min([prompt_tokens + new_tokens, *limits])
    new = min(new_tokens, max(1, room - min(prompt_tokens, room // 2)))
    prompt = room - new
    times: dict[str, list[float]] = {name: [] for name in models}
    with progress_bar("time generation", repeats * len(models)) as advance:
        for model in models.values():
            _generation_seconds(model, prompt, min(new, WARM_UP_TOKENS))
        names = list(models)
        for number in range(repeats):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(1000 * _generation_seconds(models[name], prompt, new) / new)
                advance(note=name)
    sizes = {"prompt_tokens": prompt, "new_tokens": new, "batch": 1}
    return {
        name: {"ms_per_token": statistics.median(values), "repeats": values, **sizes} for name, values in times.items()
    }


@torch.no_grad()
def _generation_seconds(model: PreTrainedModel, prompt_tokens: int, new_tokens: int) -> float:
    vocabulary = model.config.get_text_config().vocab_size
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (1, prompt_tokens), generator=draw).to(model.device)
    greedy = Sampling(greedy=True).arguments()
    length = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    _wait(model.device)
    started = time.perf_counter()
    generate(model, ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **greedy, **length)
    _wait(model.device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type != "cpu":  # an accelerator runs asynchronously
        torch.accelerator.synchronize(device)
