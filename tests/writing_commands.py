"""Commands of all verbs, those that write a file and those that do not, and the folder that they read."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import yaml

from sentence_models import cue_model, make_corpus, sentence_model, write_text_encoder
from small import loss_rows, recipe_values, save_model, small_gpt2, write_documents, write_rows
from sweeping import sweep_values
from synthetic_sweep import write_sweep

COMMANDS = {
    "prepare": "prepare text.jsonl --tokenizer train:300 --out out/corpus",
    "prepare again": "prepare text.jsonl --tokenizer train:300 --out old/corpus --overwrite",
    "train": "train recipe.yaml --out out/run",
    "resume": "train recipe.yaml --out old/stopped",
    "evaluate": "evaluate model --corpus old/corpus --limit 2 --out out/loss",
    "evaluate again": "evaluate model --corpus old/corpus --limit 2 --out old/loss --overwrite",
    "curve": "curve model --corpus old/corpus --limit 2 --out out/curve",
    "embed": "model embed model lines.txt --out out/v.npy",
    "export": "export model --out out/shared",
    "report": "report old/run --out out/report.html",
    "report again": "report old/run --out old/report.html",
    "compare": "compare old/run model --corpus old/corpus --html out/compared.html",
    "decide": "decide losses.jsonl --out out/decision",
    "trial": "trial trial.yaml --out out/trial",
    "sweep": "plan sweep sweep.yaml --out out/sweep",
    "transfer": "plan transfer recipe.yaml --widths 16,32 --factors 0.5,1,2 --seeds 2 --to 64 --out out/transfer",
    "budget": "plan budget old/sweep --table out/table.json",
    "demo": "demo --quick --out out/demo",
    "reproduce": "reproduce paper/table --recipes recipes --out out/reproduced",
    "answers": "measure answers model questions.jsonl --max-new-tokens 2 --out out/result",
    "attention": "measure attention model --text lines.txt --out out/page.html",
    "causality": "measure causality model --out out/result",
    "entropy": "measure entropy model --corpus old/corpus --contexts 4,8 --samples 50 --density-samples 4 --out out/result",
    "evaluate-metadata": "measure evaluate-metadata model title --corpus old/corpus --context 32 --limit 2 --out out/result",
    "infill": "measure infill old/filler code.jsonl --limit 2 --max-new-tokens 2 --out out/result",
    "needles": "measure needles long --length 160 --masked 120,140 --samples 2 --out out/result",
    "rescore": "measure rescore sentences/lm lists.jsonl --out out/result",
    "ruler": "measure ruler long --tasks fwe --length 120 --visible 20 --samples 2 --no-example --out out/result",
    "sentences": "measure sentences sentences/lm --corpus sentences/corpus --split train --limit 2 --out out/result",
    "tasks": "measure tasks long mine --include-path tasks --out out/result",
}
"""Commands of all verbs that write a file, in the folder of :func:`write_template`; a new verb comes here too."""
READING = {
    "corpus": "corpus old/corpus",
    "fill": "model fill old/filler --prefix 'def one' --suffix pass --max-new-tokens 2",
    "generate": "generate model 'a b' --max-new-tokens 2",
    "recipes": "recipes",
    "parameters": "model parameters recipe.yaml",
    "verify": "model verify old/run",
}
"""Commands of the verbs that write nothing; ``model serve`` does not end."""
LINES = COMMANDS | READING


@contextlib.contextmanager
def small_demo() -> Iterator[None]:
    """A demo of seconds, on short files, with as many steps each time."""
    from contextwise.data.sources import stdlib
    from contextwise.experiments import cost, demo

    short = [(name, path) for name, path in stdlib.stdlib_files() if path.stat().st_size < 1000]
    settings = ("tokens=128", "seeds=2", "recipe.data.context=16", "recipe.training.tokens_per_step=64")
    shape = {"layers": 1, "width": 16, "heads": 2}
    settings += tuple(f"recipe.model.{name}={value}" for name, value in shape.items())
    small = replace(demo.QUICK, trial=settings, documents=24, held_out=0.5, vocabulary=300)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(stdlib, "stdlib_files", lambda: short))
        stack.enter_context(mock.patch.object(demo, "QUICK", small))
        stack.enter_context(mock.patch.object(demo, "KNOWN", "./a-model-that-is-nowhere"))
        stack.enter_context(
            mock.patch.object(cost, "seconds_per_step", lambda recipes, *_: dict.fromkeys(recipes, 1.0))
        )
        yield


def write_template(folder: Path) -> None:
    """Write a text, a corpus, a recipe, a model, and results of earlier commands."""
    from contextwise.data import Corpus, prepare_corpus
    from contextwise.evaluation.kernel import measure
    from contextwise.evaluation.measures.loss import Loss
    from contextwise.training import Recipe, train

    write_documents(folder / "text.jsonl", 12)
    (folder / "lines.txt").write_text("one line\nanother\n")
    prepare_corpus(folder / "text.jsonl", "bytes", folder / "old" / "corpus", validation=0.6)
    values = recipe_values(folder / "old" / "corpus", folder / "old" / "run", steps=2, save_every=1)
    values["training"] |= {"evaluate_every": 1, "log_every": 1}
    train(Recipe.model_validate(values))
    shutil.copytree(folder / "old" / "run", stopped := folder / "old" / "stopped")
    for made in (stopped / "model", stopped / "checkpoints" / "step-2"):
        shutil.rmtree(made)
    (stopped / "summary.json").unlink()
    del values["output"]
    values["data"]["corpus"] = "old/corpus"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    shared = {"data": {"context": 16}, "model": {"layers": 1, "width": 16, "heads": 2}}
    shared["training"] = {"tokens_per_step": 64, "warmup_steps": 0, "evaluation_tokens": 16}
    paired = {"corpus": "old/corpus", "arms": ["gpt2", "pm"], "recipe": shared, "tokens": 128}
    paired |= {"seeds": 2, "rates": "fixed", "limit": 6}
    (folder / "trial.yaml").write_text(yaml.safe_dump(paired))
    sweep = sweep_values(Path("old/corpus"), Path("unused"), grid={"data.context": [16], "training.steps": [4]})
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    parity = {"bits": 8, "tasks": 10, "first": 4, "shortest": 2, "validation_samples": 16}
    mlp = {"family": "parity_mlp", "width": 8, "feature_size": 4}
    schedule = {"steps": 2, "evaluate_every": 2, "save_every": 1, "examples_per_step": 4}
    trained = {"data": {"synthetic": parity}, "model": mlp, "training": schedule}
    settings = {"name": "one", "tolerance": 10, "contexts": [3], "samples": 1000, "recipe": trained}
    printed = {"bits": 8, "tasks": 10, "contexts": [3], "model": [0.6], "minimum": [0.6]}
    item = {"title": "A table", "source": "a paper", "measure": "parity_table", "printed": printed}
    item["scales"] = {"tiny": {"machine": "one CPU thread", "settings": settings}}
    (folder / "recipes" / "paper").mkdir(parents=True)
    (folder / "recipes" / "paper" / "table.yaml").write_text(yaml.safe_dump(item))
    save_model(folder / "model", small_gpt2())
    corpus = Corpus.open(folder / "old" / "corpus", "validation")
    measure(folder / "model", Loss(limit=1), corpus, out=folder / "old" / "loss")
    (folder / "old" / "report.html").write_text("an older page")
    write_sweep(folder / "old" / "sweep", sizes=["pico", "nano"], contexts=[64, 128, 256], steps=200, measurements=4)
    filler = recipe_values(folder / "old" / "corpus", folder / "old" / "filler", steps=2, evaluate_every=0)
    filler |= {"objective": "infilling", "model": {"layers": 1, "width": 32, "heads": 2}}
    train(Recipe.model_validate(filler))
    save_model(folder / "long", small_gpt2(positions=512))
    write_measured(folder)


def write_measured(folder: Path) -> None:
    """Inputs of the measures that read more than a corpus."""
    sentences = folder / "sentences"
    sentences.mkdir()
    make_corpus(sentences)
    save_model(sentences / "cue", cue_model(write_text_encoder(sentences / "bert")))
    save_model(sentences / "lm", sentence_model())
    write_rows(folder / "lists.jsonl", [{"id": i, "candidates": ["Oil rises.", "Oil falls."]} for i in range(3)])
    write_rows(folder / "code.jsonl", [{"text": "def one():\n    return 1\n\nprint(one())\n"}] * 4)
    turns = {"category": "writing", "turns": ["Say it.", "Again."]}
    write_rows(folder / "questions.jsonl", [{"question_id": i, **turns} for i in range(2)])
    write_rows(folder / "losses.jsonl", loss_rows("ab", 3, range(6)))
    (folder / "tasks").mkdir()
    write_rows(folder / "tasks" / "mine.jsonl", [{"text": f"a {word}"} for word in ("b", "c", "d")])
    task = {"task": "mine", "dataset_path": "json", "output_type": "loglikelihood_rolling", "test_split": "train"}
    task |= {"doc_to_text": "", "doc_to_target": "{{text}}", "metric_list": [{"metric": "word_perplexity"}]}
    task["dataset_kwargs"] = {"data_files": {"train": "tasks/mine.jsonl"}}
    (folder / "tasks" / "mine.yaml").write_text(yaml.safe_dump(task))
