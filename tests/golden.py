"""Hashes of what training and measuring give, to the last digit: a refactor leaves them as they are.

``python tests/golden.py`` writes ``golden.json`` on this machine; it is compared where processor and torch are the same.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

FILE = Path(__file__).with_suffix(".json")
TIMES = {
    "seconds",
    "flops_per_second",
    "tokens_per_second",
    "input_tokens_per_second",
    "mfu",
    "time",
    "environment",
    "peak_memory",
    "memory",
}
GPT2 = {"layers": 2, "width": 32, "heads": 2}


def machine() -> dict[str, str]:
    """What the last digits depend on, beside the code."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    units = sorted({flag for flag in flags.split() if flag.startswith(("avx", "amx", "fma"))})
    return {"torch": torch.__version__, "units": " ".join(units)}


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def weights_hash(model: Path) -> str:
    """SHA-256 over the names and bytes of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(model / "model.safetensors").items()):
        digest.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


RECORDED = {"best_context_loss": "last_tenth"}
"""Names of numbers -> those under which the hashes of ``golden.json`` were recorded, on a processor that few have."""


def _numbers(value: Any, folder: str) -> Any:
    """A JSON value without times, machines, paths and the keys that hold hashes of settings."""
    if isinstance(value, dict):
        added = (
            {"freedom", "parts", "confidence"} if "low" in value else set()
        )  # of an interval, since the hashes were recorded
        dropped = (
            TIMES | added | {"path", "key", "question", "digest", "settings", "source", "label", "model", "version"}
        )
        return {RECORDED.get(name, name): _numbers(each, folder) for name, each in value.items() if name not in dropped}
    if isinstance(value, list):
        return [_numbers(each, folder) for each in value]
    return value if not isinstance(value, str) or folder not in value else "path"


def recipes(inputs: Path) -> dict[str, dict[str, Any]]:
    """Name -> recipe, in an order in which runs that start from others come after them."""
    from cue_runs import Runs

    corpus = str(inputs / "corpus")

    def recipe(objective: Any = "causal", model: Any = None, data: Any = None, **training: Any) -> dict[str, Any]:
        steps = {"steps": 20, "tokens_per_step": 256, "warmup_steps": 2, "learning_rate": 3e-3, "save_every": 10}
        steps |= {"log_every": 2, "evaluate_every": 10, "evaluation_tokens": 512, "precision": "fp32"} | training
        section = {"corpus": corpus, "context": 32} | (data or {})
        return {"objective": objective, "model": GPT2 | (model or {}), "data": section, "training": steps}

    heads = {"future_tokens": 3}
    parts = [{"objective": "infilling", "weight": 0.3}, {"objective": "causal", "weight": 0.7}]
    all_recipes = {
        "causal": recipe(),
        "contextlm": recipe(model={"context_predictor": {"predictor_layers": 1, "inject_every_layer": True}}),
        "multi-token": recipe(model={"family": "llama", "multi_token": heads | {"head": "layer"}}),
        "multi-token-contextlm": recipe(
            model={"family": "gpt_neox", "context_predictor": {}, "multi_token": heads | {"head": "linear"}}
        ),
        "prefix": recipe("prefix"),
        "infilling": recipe("infilling"),
        "mixture": recipe({"name": "mixture", "parts": parts}),
        "masked": recipe("masked", {"family": "bert"}),
        "next-sentence": recipe("next_sentence", {"family": "bert"}, {"corpus": str(inputs / "news")}),
        "spans": recipe("spans", {"family": "t5"}),
        "ul2": recipe("ul2", {"family": "t5"}, {"context": 128}),
        "contrastive": recipe("contrastive", {"family": "bert"}),
        "metadata": recipe(data={"metadata": {"columns": ["title"], "cooldown": 0.2}}),
        "replay": recipe(data={"replay": {"corpus": str(inputs / "old"), "share": 0.25}}),
        "stages": recipe(data={"context_stages": {16: 0.5}}, curve_every=10),
        "trunk": recipe(schedule="wsd", branches=[15], learning_rate=1e-3),
        "mup": recipe(parametrization="mup", mup_base_width=16, optimizer="muon"),
        "variant": recipe(model={"variant": "variants/token_order.py:TokenOrder"}),
        "retrofit": recipe() | {"model": {"pretrained": str(inputs / "causal"), "context_predictor": {}}},
        "parity": recipe() | {
            "model": {"family": "parity_transformer", "layers": 1, "width": 16, "heads": 2},
            "data": {"synthetic": {"bits": 24, "tasks": 4}},
            "training": {"steps": 20, "examples_per_step": 16, "precision": "fp32"},
        },
        "parity-mlp": recipe() | {
            "model": {"family": "parity_mlp", "width": 16, "feature_size": 4},
            "data": {"synthetic": {"bits": 24, "tasks": 4}},
            "training": {"steps": 20, "examples_per_step": 16, "precision": "fp32"},
        },
    }  # fmt: skip
    all_recipes["branch"] = recipe(schedule="wsd", trunk=str(inputs / "trunk"), learning_rate=1e-3, steps=15)
    cue = Runs(inputs, inputs / "news", str(inputs / "encoder"))
    stages = ("joint", "adapt", "proxy", "adapt_proxy", "swap")
    for values in [*cue.sentence_models(), *(cue.stage(name) for name in stages)]:
        all_recipes[f"cue-{values['name']}"] = values | {"training": values["training"] | {"precision": "fp32"}}
    for name, values in all_recipes.items():
        values.setdefault("name", name)
        values.setdefault("output", str(inputs / name))
    return all_recipes


def measures() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Name -> run, verb and settings of a measurement."""
    return {
        "evaluate": ("contextlm", "evaluate", {"context": 32}),
        "evaluate-stride": ("causal", "evaluate", {"context": 32, "stride": 8}),
        "curve": ("contextlm", "curve", {"mode": "running"}),
        "curve-truncated": ("causal", "curve", {"mode": "truncated", "contexts": [4, 16], "samples": 64}),
        "causality": ("multi-token-contextlm", "causality", {}),
        "entropy": ("causal", "entropy", {"contexts": [4, 8], "samples": 64}),
        "sentences": ("causal", "sentences", {}),
        "infill": ("infilling", "infill", {"limit": 4, "max_new_tokens": 4}),
    }


def write_inputs(folder: Path) -> None:
    """Corpora and a text encoder, from nothing."""
    from contextwise.data import prepare_corpus
    from cue_runs import save_text_encoder, write_articles
    from small import write_documents

    for name, seed in (("corpus", 0), ("old", 1)):
        prepare_corpus(write_documents(folder / f"{name}.jsonl", 60, seed), "bytes", folder / name, validation=0.2)
    news = write_articles(folder / "news.jsonl", 40, 3)
    prepare_corpus(news, "bytes", folder / "news", validation=0.2)
    save_text_encoder(folder / "encoder")


def run_hashes(values: dict[str, Any]) -> dict[str, str]:
    """Train a recipe, and hash weights and metrics."""
    from contextwise.training import train
    from contextwise.training.recipe import load_recipe

    run = train(load_recipe(values))
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    return {"weights": weights_hash(run.model), "metrics": _sha(rows), "last": str(rows[-1].get("loss"))}


def measured_hash(inputs: Path, run: str, verb: str, settings: dict[str, Any]) -> str:
    """Measure a run, and hash its summary without paths."""
    from contextwise.data import Corpus
    from contextwise.evaluation.kernel import measure, measures
    from small import write_rows

    kind = measures()[verb]
    corpus = Corpus.open(inputs / "corpus", split="validation") if kind.on_corpus else None
    if verb == "infill":
        lines = [{"text": "def one():\n    return 1\n\nprint(one())\n", "title": "a"}] * 4
        settings = settings | {"file": write_rows(inputs / "code.jsonl", lines)}
    result = measure(
        inputs / run, kind(**settings), corpus, out=inputs / f"result-{run}-{verb}-{len(settings)}", dtype="float32"
    )
    summary = json.loads((result.path / "summary.json").read_text())
    if verb == "sentences":  # the summary had it when the hashes were recorded
        summary["by_sentence"] = True
    return _sha(_numbers(summary, str(inputs)))


def golden(inputs: Path) -> dict[str, Any]:
    """All hashes, in one thread."""
    torch.set_num_threads(1)
    write_inputs(inputs)
    runs = {name: run_hashes(values) for name, values in recipes(inputs).items()}
    return {
        "machine": machine(),
        "runs": runs,
        "measures": {n: measured_hash(inputs, *m) for n, m in measures().items()},
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(json.dumps(golden(Path(folder)), indent=1) + "\n")
    sys.exit(0)
