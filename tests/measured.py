"""Measurements that tests make, and results that they write by hand."""

from pathlib import Path

import pyarrow as pa

from contextwise.evaluation.kernel import measure
from contextwise.evaluation.kernel.result import write_result
from contextwise.evaluation.measures.loss import Loss
from contextwise.evaluation.measures.sentences import SentenceLoss


def write_evaluation(folder: Path, summary: dict, documents: pa.Table) -> None:
    """An evaluation that is written by hand: a result of ``contextwise evaluate`` with these documents."""
    label = summary["label"]
    settings = {name: summary.pop(name) for name in ("context", "stride") if name in summary}
    header = {
        "measure": "evaluate",
        "key": str(folder),
        "question": label,
        "digest": "",
        "settings": settings,
    }
    tokens = pa.table({"document": pa.array([], pa.int32())})
    write_result(folder, header | summary, {"documents": documents, "tokens": tokens}, overwrite=True)


def evaluate_sentences(source, corpus, *, out=None, batch_tokens=None, **settings):
    """Score the sentences of a corpus with :class:`SentenceLoss`."""
    return measure(source, SentenceLoss(**settings), corpus, out=out, batch_tokens=batch_tokens)


def evaluate_model(source, corpus, *, out=None, overwrite=False, dtype="auto", device="auto", **settings):
    """Score the documents of a corpus with :class:`Loss`."""
    return measure(source, Loss(**settings), corpus, out=out, overwrite=overwrite, dtype=dtype, device=device)
