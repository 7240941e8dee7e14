"""Tiny models that have learned to fill holes: between letters a and b stands what says both, ``<AB>``."""

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

import small
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise.objectives import Vocabulary, add_special_tokens
from contextwise_papers.objectives import Infilling, SpanCorruption
from contextwise_papers.objectives.infill.filling import Infiller
from contextwise_papers.objectives.spans import corrupt

LETTERS = "abcd"
BYTES = byte_tokenizer()
END = BYTES.end_of_text
POSITIONS = 64
RENAMED = Infilling(prefix_token="<P>", suffix_token="<S>", middle_token="<M>", end_token="<E>")
SPANS = SpanCorruption(sentinels=4)


def infill(model: Any, tokenizer: Any, prefix: str, suffix: str, **options: Any) -> str:
    """The likeliest text between two, with the options of an Infiller."""
    infiller = Infiller(model, tokenizer, **options)
    return infiller.fill([infiller.prompt(prefix, suffix)])[0].text


def middle(before: str, behind: str) -> str:
    """What stands between two letters."""
    return f"<{before}{behind}>".upper()


def tokenizer_of(objective: Any) -> PreTrainedTokenizerFast:
    """Bytes, end-of-text, and the objective's tokens."""
    tokenizer = copy.deepcopy(BYTES.tokenizer)
    add_special_tokens(tokenizer, objective.special_tokens)
    return tokenizer


def gpt2(objective: Infilling, seed: int = 0) -> GPT2LMHeadModel:
    """Untrained, with weights large enough for tokens and places to matter."""
    torch.manual_seed(seed)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS, "initializer_range": 0.2}
    config = GPT2Config(vocab_size=len(tokenizer_of(objective)), bos_token_id=END, eos_token_id=END, **shape)
    return GPT2LMHeadModel(config).eval()


def context_lm(objective: Infilling, seed: int = 0) -> ContextLMForCausalLM:
    torch.manual_seed(seed)
    config = ContextLMConfig(backbone_config=gpt2(objective).config, predictor_layers=1)
    return ContextLMForCausalLM(config).eval()


def t5(objective: Any, seed: int = 0) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    ends = {"decoder_start_token_id": END, "eos_token_id": END, "pad_token_id": END}
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer_of(objective)), **shape, **ends)).eval()


def _examples(objective: Any, spm: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """What the objective makes of each pair of letters: for decoders (ids, middle and end), for T5 (input, target)."""
    vocabulary = Vocabulary(tokenizer_of(objective), END)
    made = []
    for before in LETTERS:
        for behind in LETTERS:
            parts = before, middle(before, behind), behind
            prefix, inner, suffix = BYTES.encode(list(parts))
            if isinstance(objective, Infilling):
                ids = objective.arrangement(vocabulary).write(prefix, inner, suffix, spm)
                made.append((ids, ids[-len(inner) - 1 :]))
            else:
                noise = np.repeat([False, True, False], [len(prefix), len(inner), len(suffix)])
                sentinels = np.array(vocabulary.ids(objective.special_tokens, "spans"))
                inputs, targets = corrupt(np.concatenate([prefix, inner, suffix]), noise, sentinels)
                made.append((np.append(inputs, END), np.append(targets, END)))
    return made


@functools.cache
def taught(kind: str) -> Any:
    """A model that fills the pattern: ``gpt2``, ``contextlm`` (both PSM and SPM, tokens renamed) or ``t5``."""
    objective = SPANS if kind == "t5" else RENAMED
    model = {"gpt2": gpt2, "contextlm": context_lm, "t5": t5}[kind](objective).train()
    examples = _examples(objective, False) + ([] if kind == "t5" else _examples(objective, True))
    inputs, targets = (torch.from_numpy(np.stack(part)) for part in zip(*examples, strict=True))
    if kind != "t5":  # the middle and its end are the last labels
        labels = torch.full_like(inputs, -100)
        labels[:, -targets.shape[1] :] = targets
        targets = labels
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(400):
        loss = model(input_ids=inputs, labels=targets).loss
        if loss < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05, f"{kind} did not learn the pattern: {loss:.3f}"
    return model.eval()


def write_run(folder: Path, kind: str, context: int = POSITIONS) -> Path:
    """The model of :func:`taught` as a run, as far as infilling looks at one."""
    objective = SPANS if kind == "t5" else RENAMED
    recipe = {"name": kind, "data": {"context": context}, "objective": objective.model_dump(mode="json")}
    return small.write_run(folder, taught(kind), tokenizer_of(objective), recipe)
