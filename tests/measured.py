"""Measurements that tests make, and results that they write by hand."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel

from contextwise.base.errors import Interrupted
from contextwise.evaluation.kernel import Result, measure
from contextwise.evaluation.kernel.result import write_result
from contextwise.evaluation.measures.loss import Loss
from contextwise.evaluation.scoring.scores import totals
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise_papers.cue.sentences import SentenceLoss

VOCABULARY = 23
CONTEXT = 12


def result_header(measure: str, settings: dict, **values) -> dict:
    """The part of a summary that every result has."""
    about = {"measure": measure, "key": "", "question": "", "label": "x", "model": "m", "name": "m", "run": False}
    about |= {"digest": "", "parameters": 9, "dtype": "float32", "device": "cpu", "confidence": 0.95}
    return about | {"environment": {}, "seconds": 1.0, "settings": settings} | values


def write_evaluation(folder: Path, summary: dict, documents: pa.Table) -> None:
    """An evaluation that is written by hand: a result of ``contextwise evaluate`` with these documents."""
    label = summary["label"]
    settings = {name: summary.pop(name) for name in ("context", "stride") if name in summary}
    settings = {"context": 64, "stride": 32, "full_windows": False, "limit": None} | settings
    header = result_header("evaluate", settings, key=str(folder), question=label, first_token_scored=True) | totals(
        documents
    )
    tokens = pa.table({"document": pa.array([], pa.int32())})
    write_result(folder, header | summary, {"documents": documents, "tokens": tokens}, overwrite=True)


def stopped_and_resumed(
    make: Callable[[Path], Result], folder: Path, stop_at: Callable[[int], None], looks: int
) -> None:
    """A measurement that is stopped when it looks for the ``looks``-th time resumes, and ends as one that never was."""
    whole = make(folder / "whole")
    stop_at(looks)
    with pytest.raises(Interrupted, match=r"stopped after [\d,]+ of [\d,]+ \w+; run the same command again to resume"):
        make(folder / "stopped")
    assert not (folder / "stopped").exists()
    stop_at(0)
    resumed = make(folder / "stopped")
    same = [{key: value for key, value in each.summary.items() if key != "seconds"} for each in (whole, resumed)]
    assert same[0] == same[1]
    assert not list(folder.glob("*.unfinished"))


def evaluate_sentences(source, corpus, *, out=None, batch_tokens=None, **settings):
    """Score the sentences of a corpus with :class:`SentenceLoss`."""
    return measure(source, SentenceLoss(**settings), corpus, out=out, batch_tokens=batch_tokens)


def evaluate_model(
    source, corpus, *, out=None, overwrite=False, dtype="auto", device="auto", batch_tokens=None, **settings
):
    """Score the documents of a corpus with :class:`Loss`."""
    options = {"overwrite": overwrite, "dtype": dtype, "device": device, "batch_tokens": batch_tokens}
    return measure(source, Loss(**settings), corpus, out=out, **options)


def make_model(kind: str, seed: int = 0, vocab_size: int = VOCABULARY, n_positions: int = CONTEXT) -> PreTrainedModel:
    """A model of a few thousand parameters, its weights large enough for position and context to matter."""
    torch.manual_seed(seed)
    shared = {"vocab_size": vocab_size, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}
    if kind == "gpt_neox":
        size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        return GPTNeoXForCausalLM(GPTNeoXConfig(max_position_embeddings=n_positions, **size, **shared)).eval()
    gpt2 = GPT2Config(n_positions=n_positions, n_embd=16, n_layer=2, n_head=2, **shared)
    if kind == "gpt2":
        return GPT2LMHeadModel(gpt2).eval()
    return ContextLMForCausalLM(ContextLMConfig(backbone_config=gpt2, chunk_size=4, injection="add")).eval()
