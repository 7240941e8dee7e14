"""Trained models on long tasks, read beyond their trained context with dynamic NTK (ContextLM, Section 4.1, Table 5).

Every model answers the same questions. Scores are averaged over seeds at each question, over the questions of a data set, over
the data sets of a group and over the groups, as LongBench does. Intervals of differences are over documents and seeds, and
paired: the scores of all models for a document stay together (:mod:`contextwise_evals.long_tasks.results`).

Legend of shapes: Q questions, M models.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import Field, field_validator

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import FEWEST_DOCUMENTS, Estimate
from contextwise.base.intervals import with_seeds
from contextwise.base.tables import Table
from contextwise.models.rope import Rope
from contextwise_evals.long_tasks import LongBench, read_range
from contextwise_evals.long_tasks.items import chosen_items
from contextwise_evals.long_tasks.results import Level, level_of, mean_level
from contextwise_papers.claims import Claim, above, percentage_points
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import TrainedModels, measured_by_model, paths_of
from contextwise_papers.tables import table_of

OVERALL = "all groups"
Rows = dict[str, list[list[dict[str, Any]]]]
"""Model -> seed -> the rows of ``answers.jsonl``."""


class LongTaskScores(TrainedModels, name="long_task_scores"):
    """Scores of each model by group of tasks, at one visible context or several."""

    files: list[Path] = Field(default=[], description="of LongBench's or L-Eval's form")
    visible: list[int] = Field(default=[], description="tokens of a prompt that are seen")
    whole: bool = Field(default=False, description="also answer with the complete prompt visible")
    lengths: str | None = Field(default="0-4000", description="words of a text, from-below; null: any")
    limit: int | None = Field(
        default=None, ge=1, description="questions of each data set, of as many texts as possible"
    )
    new_tokens: int | None = Field(default=None, ge=1, description="of an answer at most")
    rope: Rope | None = Field(default="dynamic", description=f"{', '.join(get_args(Rope))}; null: none")

    @field_validator("lengths")
    @classmethod
    def _range(cls, value: str | None) -> str | None:
        if value is not None:
            read_range(value)
        return value

    def measure(self, item: Item, folder: Path) -> Outcome:
        settings = self._settings()
        runs = self.trained(folder)
        results = measured_by_model(runs, settings)
        summary = next(iter(results.values()))[0].summary
        rows = {name: [result.rows_of("answers") for result in seeds] for name, seeds in results.items()}
        groups = {name: about["group"] for name, about in summary["datasets"].items()}
        by_visible = {visible: with_each_seed(rows, groups, i) for i, visible in enumerate(summary["visible"])}
        tables = [self._table(visible, levels, summary) for visible, levels in by_visible.items()]
        largest = max(by_visible)
        scores = {
            visible: {g: {name: level.estimate(i) for i, name in enumerate(self.models)} for g, (level, *_) in levels.items()}
            for visible, levels in by_visible.items()
        }  # fmt: skip
        figures = {"scores": scores, "groups": groups}
        figures |= {name: summary[name] for name in ("notes", "rope_factor", "trained_context")}
        claims = self._claims(by_visible[largest][OVERALL], largest)
        return Outcome(tables, claims, figures, paths_of(runs))

    def _settings(self) -> LongBench:
        """Settings of the measure and the files that they name, checked before any training."""
        if not self.files:
            raise DataError(
                "no questions on long texts are given; give files of LongBench's or L-Eval's form with "
                "--set files=[FILE,FILE]"
            )
        if not self.visible and not self.whole:
            raise ConfigError(
                "no visible context is given; give some with --set visible=[512,1024], or --set whole=true"
            )
        visible = [*self.visible, *(["all"] if self.whole else [])]
        shared = ("files", "lengths", "limit", "new_tokens", "rope")
        settings = self.settings_of(LongBench, *shared, visible=visible)
        lengths = None if self.lengths is None else read_range(self.lengths)
        chosen_items(self.files, lengths, self.limit, self.new_tokens)
        return settings

    def _gain(self, levels: list[Level], name: str, than: str) -> Estimate:
        """Score of one model minus that of another; ``levels``: of the mean over seeds, then of each seed."""
        index = list(self.models).index
        mean, *of_seeds = (level.gain(index(than), index(name)) for level in levels)
        return with_seeds(mean, np.array([gain.value for gain in of_seeds]))

    def _table(self, visible: int, levels: dict[str, list[Level]], summary: dict[str, Any]) -> Table:
        rows = []
        for group, of_group in levels.items():
            scores = [100 * of_group[0].estimate(i).value for i in range(len(self.models))]
            rows.append([group, *scores, *(self._gain(of_group, n, self.reference).scaled(100) for n in self.others)])
        gains = [(f"{name} minus {self.reference}", "+.2f") for name in self.others]
        questions = sum(about["questions"] for about in summary["datasets"].values())
        return table_of(
            f"Scores, %, with {visible:,} tokens of a prompt visible; {questions:,} questions of "
            f"{len(summary['datasets'])} data sets; {self.with_seeds}; differences with 95% intervals over documents and seeds",
            ["group", *((name, ".2f") for name in self.models), *gains],
            rows,
        )

    def _claims(self, levels: list[Level], visible: int) -> list[Claim]:
        remark = f"over documents and seeds, paired; {self.with_seeds}"
        if levels[0].documents < FEWEST_DOCUMENTS:
            remark = f"a data set has {levels[0].documents} documents only; give more with limit"
        claims = []
        for claim in self.claims:
            gain = self._gain(levels, claim.better, claim.than)
            what = f", mean score over groups with {visible:,} tokens visible"
            decided = claim.decided(above(gain), f"{what}: {percentage_points(gain)}; {remark}")
            claims.append(decided.over_seeds(len(self.seeds)))
        return claims


def with_each_seed(rows: Rows, groups: dict[str, str], context: int) -> dict[str, list[Level]]:
    """Group -> :func:`levels_of` the mean over seeds, and then of each seed alone."""
    count = len(next(iter(rows.values())))
    parts = [rows, *({name: [seeds[i]] for name, seeds in rows.items()} for i in range(count))]
    levels = [levels_of(part, groups, context) for part in parts]
    return {group: [each[group] for each in levels] for group in levels[0]}


def levels_of(rows: Rows, groups: dict[str, str], context: int) -> dict[str, Level]:
    """Group -> the level of all models side by side, and that of all groups.

    Args:
        groups: data set -> its group.
        context: index of the visible context in each row.
    """
    of_group: dict[str, list[Level]] = defaultdict(list)
    for dataset, group in groups.items():
        of_set = {
            name: [[row for row in seed if row["dataset"] == dataset] for seed in seeds] for name, seeds in rows.items()
        }
        of_model = (
            np.mean([[row["answered"][context]["score"] for row in seed] for seed in seeds], axis=0)
            for seeds in of_set.values()
        )
        documents = [row["document"] for row in next(iter(of_set.values()))[0]]
        of_group[group].append(level_of(np.stack([*of_model], axis=1), documents))
    by_group = {group: mean_level(levels) for group, levels in of_group.items()}
    return {**by_group, OVERALL: mean_level(list(by_group.values()))}
