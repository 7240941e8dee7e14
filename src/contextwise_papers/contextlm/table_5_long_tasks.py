"""Trained models on long tasks, read beyond their trained context with dynamic NTK (ContextLM, Section 4.1, Table 5).

Scores are averaged over seeds at each question, over the questions of a task, over the tasks of a group and over the groups, as
LongBench does. Intervals of differences are over documents and seeds, and paired: the scores of all models for a document stay
together (:mod:`contextwise_evals.levels`).
"""

import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import Field, field_validator

from contextwise.base.estimates import FEWEST_DOCUMENTS
from contextwise.models.rope import Rope
from contextwise.report import Table
from contextwise.settings import ConfigError
from contextwise.stats import Estimate, with_seeds
from contextwise_evals.harness import HarnessTasks, read_range
from contextwise_evals.levels import Level, level_of, mean_level
from contextwise_papers.claims import Claim, above, percentage_points
from contextwise_papers.contextlm.tables_1_2_3_12_harness import OnHarness
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import measured_by_model, paths_of
from contextwise_papers.tables import table_of

OVERALL = "all groups"
Rows = dict[str, list[list[dict[str, Any]]]]
"""Model -> seed -> the rows of ``answers.jsonl`` at one context, each with the ``text`` that its question is on."""


class LongTaskScores(OnHarness, name="long_task_scores"):
    """Scores of each model by group of tasks, at one context or several."""

    groups: dict[str, list[str]] = Field(default={}, description="the harness's tasks of each group")
    context: list[int] = Field(default=[], description="tokens of a prompt with its answer; of a longer one, the last")
    lengths: str | None = Field(default="0-4000", description="words of a text, from-below; null: any")
    rope: Rope | None = Field(default="dynamic", description=f"{', '.join(get_args(Rope))}; null: none")
    score: str = Field(default="score", description="the harness's name of the score")

    @field_validator("lengths")
    @classmethod
    def _range(cls, value: str | None) -> str | None:
        if value is not None:
            read_range(value)
        return value

    def measure(self, item: Item, folder: Path) -> Outcome:
        settings, groups, texts = self._settings()
        runs = self.trained(folder)
        results = measured_by_model(runs, settings)
        summary = next(iter(results.values()))[0].summary
        answers = {name: [result.rows_of("answers") for result in seeds] for name, seeds in results.items()}
        for row in (row for seeds in answers.values() for rows in seeds for row in rows):
            row["text"] = texts[row["task"]][row["document"]]
            row["score"] = row["scores"][self.score]
        contexts = sorted(set(self.context))
        by_context = {
            context: with_each_seed(
                {
                    name: [[row for row in rows if row["context"] == context] for rows in seeds]
                    for name, seeds in answers.items()
                },
                groups,
            )
            for context in contexts
        }
        questions = sum(row["documents"] for row in summary["rows"] if row["context"] == contexts[0])
        about = f"{questions:,} questions of {len(groups)} tasks"
        tables = [self._table(context, levels, about) for context, levels in by_context.items()]
        scores = {
            context: {g: {name: level.estimate(i) for i, name in enumerate(self.models)} for g, (level, *_) in levels.items()}
            for context, levels in by_context.items()
        }  # fmt: skip
        figures = {"scores": scores, "groups": groups}
        figures |= {name: summary[name] for name in ("notes", "rope_factor", "trained_context")}
        claims = self._claims(by_context[contexts[-1]][OVERALL], contexts[-1])
        return Outcome(tables, claims, figures, paths_of(runs))

    def _settings(self) -> tuple[HarnessTasks, dict[str, str], dict[str, list[str]]]:
        """Settings of the harness, the group of each task, and the text that each of its documents is on.

        They are checked before any training.
        """
        if not self.groups:
            raise ConfigError("no tasks are given; give some with --set 'groups={NAME: [TASK,TASK]}'")
        if not self.context:
            raise ConfigError("no context is given; give some with --set context=[512,1024]")
        shared = ("include_path", "limit", "context", "lengths", "rope")
        groups, texts = {}, {}
        for group, names in self.groups.items():
            for plan in self.settings_of(HarnessTasks, *shared, tasks=names).plan():
                known = plan.task.aggregation()
                if plan.task.OUTPUT_TYPE != "generate_until" or self.score not in known:
                    raise ConfigError(
                        f"the task {plan.name!r} has no generated answers with {self.score!r}, but {', '.join(known)}"
                    )
                groups[plan.name] = group
                documents = list(plan.task.eval_docs)[: self.limit]
                texts[plan.name] = [_text(document, i) for i, document in enumerate(documents)]
        return self.settings_of(HarnessTasks, *shared, tasks=list(groups)), groups, texts

    def _gain(self, levels: list[Level], name: str, than: str) -> Estimate:
        """Score of one model minus that of another; ``levels``: of the mean over seeds, then of each seed."""
        index = list(self.models).index
        mean, *of_seeds = (level.gain(index(than), index(name)) for level in levels)
        return with_seeds(mean, np.array([gain.value for gain in of_seeds]))

    def _table(self, context: int, levels: dict[str, list[Level]], about: str) -> Table:
        rows = []
        for group, of_group in levels.items():
            scores = [100 * of_group[0].estimate(i).value for i in range(len(self.models))]
            rows.append([group, *scores, *(self._gain(of_group, n, self.reference).scaled(100) for n in self.others)])
        gains = [(f"{name} minus {self.reference}", "+.2f") for name in self.others]
        return table_of(
            f"Scores, %, at a context of {context:,} tokens; {about}; {self.with_seeds}; differences with 95% intervals over "
            "documents and seeds",
            ["group", *((name, ".2f") for name in self.models), *gains],
            rows,
        )

    def _claims(self, levels: list[Level], context: int) -> list[Claim]:
        remark = f"over documents and seeds, paired; {self.with_seeds}"
        if levels[0].documents < FEWEST_DOCUMENTS:
            remark = f"a task has {levels[0].documents} texts only; give more with limit"
        claims = []
        for claim in self.claims:
            gain = self._gain(levels, claim.better, claim.than)
            what = f", mean score over groups at a context of {context:,} tokens"
            decided = claim.decided(above(gain), f"{what}: {percentage_points(gain)}; {remark}")
            claims.append(decided.over_seeds(len(self.seeds)))
        return claims


def _text(document: dict[str, Any], number: int) -> str:
    """Identifies the text of a document: questions on one text are not independent of each other."""
    text = document.get("context")
    return hashlib.sha256(text.encode()).hexdigest()[:16] if isinstance(text, str) else str(number)


def with_each_seed(rows: Rows, groups: dict[str, str]) -> dict[str, list[Level]]:
    """Group -> :func:`levels_of` the mean over seeds, and then of each seed alone."""
    count = len(next(iter(rows.values())))
    parts = [rows, *({name: [seeds[i]] for name, seeds in rows.items()} for i in range(count))]
    levels = [levels_of(part, groups) for part in parts]
    return {group: [each[group] for each in levels] for group in levels[0]}


def levels_of(rows: Rows, groups: dict[str, str]) -> dict[str, Level]:
    """Group -> the level of all models side by side, and that of all groups; ``groups``: task -> its group."""
    of_group: dict[str, list[Level]] = defaultdict(list)
    for task, group in groups.items():
        of_task = {
            name: [[row for row in seed if row["task"] == task] for seed in seeds] for name, seeds in rows.items()
        }
        of_model = (np.mean([[row["score"] for row in seed] for seed in seeds], axis=0) for seeds in of_task.values())
        texts = [row["text"] for row in next(iter(of_task.values()))[0]]
        of_group[group].append(level_of(np.stack([*of_model], axis=1), texts))
    by_group = {group: mean_level(levels) for group, levels in of_group.items()}
    return {**by_group, OVERALL: mean_level(list(by_group.values()))}
