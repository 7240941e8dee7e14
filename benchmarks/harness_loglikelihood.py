"""Time and memory of log-likelihoods against lm-evaluation-harness's own ``HFLM``: same model, same text, same machine.

1. ``contextwise evaluate`` and ``curve`` against ``loglikelihood_rolling`` on the documents of a corpus: measurements with
   intervals and files, without imports and the opening of model and corpus. ``evaluate`` is measured as it is by default
   (windows that overlap by half), and with the harness's windows (``--stride CONTEXT --full-windows``), whose total is
   compared with the harness's; also in bfloat16, with the change of the loss. A curve may change its model's positions, so
   its time includes loading the model again. Goal: a third of the harness's time, totals equal to 1e-5.
2. Peak memory and time at each length, with a vocabulary of 50k: a whole text, where every position is scored (``evaluate``,
   and the path of ``contextwise measure tasks``), and two choices of eight tokens behind one long context, where 16
   positions are scored (``tasks``). Goal: a tenth of the harness's memory at 8k tokens.

Each measurement runs in a process of its own; times are taken in alternation.
"""

import argparse
import ctypes
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Worker, alternate, peak_memory, publish, serve
from benchmarks.memory import HEADS, LAYERS, VOCABULARY, WIDTH
from contextwise.base import machine

MODULE = "benchmarks.harness_loglikelihood"
CHOICES, CHOICE_TOKENS = 2, 8
PATHS = {"text": ("evaluate", "tasks", "lm_eval"), "choices": ("tasks", "lm_eval")}
SAME = "evaluate, the harness's windows"
BF16 = "evaluate, the harness's windows, bfloat16"
WAYS = ("evaluate", SAME, BF16, "curve", "lm_eval", "lm_eval, batches of 8")


def requests(kind: str, context: int) -> list[tuple[None, list[int], list[int]]]:
    """Tokens as the harness hands them to its model: (what it was, context, continuation)."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, context + CHOICES * CHOICE_TOKENS).tolist()
    if kind == "text":
        return [(None, tokens[:1], tokens[1 : context + 1])]
    before = tokens[: context - CHOICE_TOKENS]
    continuations = [tokens[context + i * CHOICE_TOKENS :][:CHOICE_TOKENS] for i in range(CHOICES)]
    return [(None, before, end) for end in continuations]


def path(which: str, kind: str, context: int) -> Callable[[], list[float]]:
    """One pass of a path over a random model: returns the log-likelihoods of the requests."""
    from lm_eval.models.huggingface import HFLM
    from transformers import LlamaForCausalLM

    from contextwise.data.tokenizers import byte_tokenizer
    from contextwise.evaluation.scoring.windows import score_documents
    from contextwise.models import ModelSize, backbone_config
    from contextwise_evals.harness.model import BoundedLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if which != "lm_eval" and device == "cpu":
        machine.keep_freed_memory()  # as `contextwise evaluate` does
    torch.manual_seed(0)
    config = backbone_config("llama", ModelSize(LAYERS, WIDTH, HEADS, 1e-3), VOCABULARY, context)
    model = LlamaForCausalLM(config).to(device).eval()
    instances = requests(kind, context)
    if which == "evaluate":
        ((_, before, continuation),) = instances
        tokens = np.array(before + continuation)
        text = SimpleNamespace(lengths=np.array([len(tokens)]), end_of_text=None, document=lambda index: tokens)
        return lambda: (-score_documents(model, text, context, context).document_sums()).tolist()
    tokenizer = byte_tokenizer().tokenizer  # is not asked: the requests are tokens already
    if which == "tasks":
        lm: Any = BoundedLM(model, tokenizer, max_length=context, batch_tokens=16_384)
    else:
        lm = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", max_length=context, batch_size=1)
    return lambda: [nats for nats, _ in lm._loglikelihood_tokens(instances, disable_tqdm=True)]


def way(which: str, model: str, corpus: str, split: str, folder: str) -> Callable[[], list[float]]:
    """One measurement of a model on a corpus: returns the log-likelihood of each document, nothing for a curve.

    The results are written to ``folder``, each into a folder of its own, so that none is found again.
    """
    from contextwise.data import Corpus
    from contextwise.evaluation.kernel import Subject, measure
    from contextwise.evaluation.measures.curve import Curve
    from contextwise.evaluation.measures.loss import Loss

    documents = Corpus.open(corpus, split)
    subject = Subject(model, dtype="bfloat16" if which == BF16 else "auto")
    context = subject.context()
    if which.startswith("lm_eval"):
        return rolling(model, documents, context, 8 if which.endswith("8") else 1)
    settings = {"evaluate": Loss(), "curve": Curve()}.get(which, Loss(stride=context, full_windows=True))
    _ = subject.model

    def step() -> list[float]:
        result = measure(subject, settings, documents, out=Path(tempfile.mkdtemp(dir=folder)) / "result")
        return [] if which == "curve" else (-result.documents["nats"].to_numpy()).tolist()

    return step


def rolling(model: str, documents: Any, context: int, batch_size: int) -> Callable[[], list[float]]:
    """The harness's log-likelihood of each document's text, in float32."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from contextwise.models.loading import load_model

    tokenizer = documents.tokenizer()
    texts = [tokenizer.decode(documents.document(index)) for index in range(len(documents))]
    for index, text in enumerate(texts):
        if tokenizer.encode(text, add_special_tokens=False) != documents.document(index).tolist():
            raise SystemExit(f"document {index} is not the tokens of its text, so the harness would read others")
    lm = HFLM(
        pretrained=load_model(model, dtype=torch.float32),
        tokenizer=tokenizer,
        backend="causal",
        max_length=context,
        batch_size=batch_size,
    )
    asked = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(texts)]
    return lambda: lm.loglikelihood_rolling(asked, disable_tqdm=True)


def child(step: Callable[[], list[float]], how: str) -> None:
    """One path in its process: its peak over what the model itself holds, or one pass for each line of standard input."""
    if how == "serve":
        serve(step)
        return
    before = held_bytes()
    nats = step()
    print(json.dumps({"bytes": machine.peak_memory() - before, "nats": nats}))


def held_bytes() -> int:
    """What the process holds now; the peak that :func:`~contextwise.base.machine.peak_memory` reads starts anew from there."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # else a step could hide in what building the model left behind
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """A line of Linux's account of this process."""
    lines = Path("/proc/self/status").read_text().split("\n")
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def contend(names: tuple[str, ...], arguments: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Measure ways in processes of their own: peak, log-likelihoods, seconds, and ratios to the harness, of each."""
    results = {name: peak_memory(MODULE, "--child", name, *arguments, "once") for name in names}
    workers = {name: Worker(MODULE, "--child", name, *arguments, "serve") for name in names}
    try:
        outcome = alternate(workers, rounds, warmup=1)
    finally:
        for worker in workers.values():
            worker.close()
    for name, result in results.items():
        result["seconds"] = outcome.seconds[name]
        result["speed"] = outcome.speed(name, "lm_eval")
        result["speed_quartiles"] = outcome.spread(name, "lm_eval")
        result["memory_ratio"] = results["lm_eval"]["bytes"] / result["bytes"]
    return results


def report(label: str, result: dict[str, Any], note: str) -> None:
    low, high = result["speed_quartiles"]
    seconds = sorted(result["seconds"])[len(result["seconds"]) // 2]
    print(
        f"{label}: {seconds:.2f} s, {result['speed']:.2f} times as fast as lm_eval ({low:.2f} to {high:.2f}); peak "
        f"{result['bytes'] / 2**20:,.0f} MiB, lm_eval's is {result['memory_ratio']:.1f} times that{note}",
        flush=True,
    )


def measure_lengths(contexts: list[int], rounds: int) -> list[dict[str, Any]]:
    """All paths over each kind of request at each length."""
    rows = []
    for context in contexts:
        for kind, names in PATHS.items():
            results = contend(names, [kind, str(context)], rounds)
            tokens = [len(continuation) for _, _, continuation in requests(kind, context)]
            theirs = results["lm_eval"]["nats"]
            for name, result in results.items():
                pairs = zip(result["nats"], theirs, tokens, strict=True)
                result["difference_nats_per_token"] = max(abs(a - b) / count for a, b, count in pairs)
                note = f"; differ by {result['difference_nats_per_token']:.1e} nats a token"
                report(f"{kind} at {context:,} tokens, {name}", result, note)
            rows.append({"kind": kind, "context": context, "paths": results})
    return rows


def measure_corpus(
    model: str, corpus: str, split: str, rounds: int, folder: str, ways: tuple[str, ...] = WAYS
) -> dict[str, Any]:
    """Ways to measure a model on the documents of a corpus, ``lm_eval`` among them; ``folder`` takes their results."""
    results = contend(ways, [model, corpus, split, folder], rounds)
    total = sum(results["lm_eval"]["nats"])
    for name, result in results.items():
        nats, note = result.pop("nats"), ""
        if nats:
            result["log_likelihood"] = sum(nats)
            result["relative_difference"] = abs(sum(nats) / total - 1)
            note = f"; total {sum(nats):,.3f}, relative difference {result['relative_difference']:.1e}"
        report(name, result, note)
    if not {BF16, SAME} <= results.keys():
        return {"ways": results}
    change = results[BF16]["log_likelihood"] / results[SAME]["log_likelihood"] - 1
    print(f"bfloat16 changes the loss by {change:+.3%}", flush=True)
    return {"ways": results, "relative_change_of_the_loss_in_bfloat16": change}


def random_model(folder: Path, size: str = "nano", context: int = 256, limit: int | None = None) -> tuple[str, str]:
    """Write a GPT-2 of random weights with its tokenizer, and the embedded corpus, or its first documents."""
    from transformers import GPT2LMHeadModel

    from contextwise.data import prepare_corpus
    from contextwise.models import backbone_config
    from contextwise.models.sizes import named_size

    corpus = prepare_corpus("stdlib", "train:4096", folder / "corpus", limit=limit)
    torch.manual_seed(0)
    tokenizer, vocabulary = corpus.tokenizer(), corpus.vocab_size
    assert tokenizer is not None and vocabulary is not None
    config = backbone_config("gpt2", named_size("gpt2", size), vocabulary, context)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return str(folder / "model"), str(corpus.path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--contexts", type=int, nargs="*", default=[2048, 8192, 16_384])
    parser.add_argument("--model", help="run or model; a small GPT-2 of random weights if not given")
    parser.add_argument("--corpus", help="corpus of the model's tokens; the embedded text if not given")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.child:
        which, *where, how = options.child
        child(path(which, where[0], int(where[1])) if where[0] in PATHS else way(which, *where), how)
        return
    if (options.model is None) != (options.corpus is None):
        parser.error("give both --model and --corpus, or neither")
    result: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "width": WIDTH,
        "layers": LAYERS,
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        model, corpus = options.model, options.corpus
        if model is None:
            model, corpus = random_model(Path(folder))
        result["corpus"] = measure_corpus(model, corpus, options.split, options.rounds, folder)
    result["measured"] = measure_lengths(options.contexts, options.rounds)
    publish("harness_loglikelihood", result)


if __name__ == "__main__":
    main(sys.argv[1:])
