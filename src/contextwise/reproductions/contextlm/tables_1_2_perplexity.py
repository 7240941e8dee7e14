"""Perplexities of trained models on a corpus, on WikiText and on LAMBADA (ContextLM, Tables 1, 2, 9 and 11).

The corpus's own is per token of its held-out documents; WikiText's is per word and LAMBADA's per last word, as the harness
defines them. The average is the plain mean of all four, as in the document: LAMBADA's, the largest by far, decides it.
"""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.base.progress import say
from contextwise.base.tables import Table
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.lm_eval.tables import PERPLEXITIES
from contextwise.reproductions.contextlm.tables_3_12_accuracy import TaskAccuracy, row_of
from contextwise.reproductions.item import Item, Outcome, registered
from contextwise.reproductions.trained_models import TrainedModels

TEXTS = ("wikitext", "lambada_openai", "lambada_standard")


@registered("text_perplexity")
class TextPerplexity(TrainedModels):
    """Models on a corpus, and, where their data are given, on the harness's texts."""

    task_data: Path | None = Field(
        None, description="a folder of local files, or a mapping file, with the texts"
    )
    limit: int | None = Field(None, ge=1, description="read only the first so many documents of each text")

    def measure(self, item: Item, folder: Path) -> Outcome:
        texts = None if self.task_data is None else self._texts().harness_tasks()
        outcome = super().measure(item, folder)
        if texts is None:
            say(
                "note: WikiText and LAMBADA are not measured; give a folder of their files with --set task_data=FOLDER"
            )
            return outcome
        runs = self.train(folder)
        summaries = {name: [measure(run.path, texts).summary for run in runs[name]] for name in self.models}
        groups = {
            group["name"]: group["perplexity"]["value"] for group in outcome.figures["comparison"]["groups"]
        }
        perplexities = {
            name: {"corpus": groups[name], **_of_texts(seeds)} for name, seeds in summaries.items()
        }
        outcome.tables.append(_table(perplexities))
        outcome.figures["texts"] = perplexities
        return outcome

    def _texts(self) -> TaskAccuracy:
        """The settings of the harness for these texts."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in TrainedModels.model_fields}
        own = {"tasks": list(TEXTS), "shots": [0], "task_data": self.task_data, "limit": self.limit}
        return TaskAccuracy(**shared, **own)


def _of_texts(seeds: list[dict[str, Any]]) -> dict[str, float]:
    """Perplexity on each text that is there, mean over seeds."""
    perplexities = {}
    for task in dict.fromkeys(row["task"] for row in seeds[0]["rows"]):
        rows = [row_of(summary, 0, task)["measures"] for summary in seeds]
        key = next(name for name in PERPLEXITIES if name in rows[0])
        perplexities[task] = float(np.mean([row[key]["value"] for row in rows]))
    return perplexities


def _table(perplexities: dict[str, dict[str, float]]) -> Table:
    texts = list(next(iter(perplexities.values())))
    complete = set(texts) == {"corpus", *TEXTS}
    rows = [
        [name, *(f"{values[text]:,.2f}" for text in texts), f"{np.mean(list(values.values())):,.2f}"]
        for name, values in perplexities.items()
    ]
    last = "average" if complete else f"average of {len(texts)}"
    return Table(
        "Perplexities: the corpus's per token, WikiText's per word, LAMBADA's per last word",
        ["model", *texts, last],
        rows,
    )
