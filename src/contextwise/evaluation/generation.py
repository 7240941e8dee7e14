"""Text generation."""

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.evaluation.kernel.subject import positions
from contextwise.evaluation.sampling import Sampling
from contextwise.models.decoding import generate
from contextwise.models.loading import load_config
from contextwise.models.spec import spec_of
from contextwise.objectives import build_objective


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
    """Encode a prompt as token ids (1, T); end-of-text replaces an empty prompt, and precedes any that ``starts_sentence``."""
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
    """Continue a prompt to the end-of-text token, to ``max_new_tokens``, or to the last position, ``samples`` times.

    Returns the continuations without special tokens; the first does not depend on ``samples``. A ``streamer`` receives the
    tokens of each text, beginning with the prompt's; ``contexts`` are further inputs of ``generate()``.
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
