"""Trained models tuned on instructions, their answers, and a judge's verdicts on them (ContextLM, Section 3.4).

1. Every model is pretrained, and tuned with the same recipe: the same batches in the same order, the same steps.
2. Each answers the questions of MT-Bench or AlpacaEval.
3. A judge behind an OpenAI-compatible endpoint rates the answers (Figure 3), or compares those of two models in both orders
   (Table 4), seed by seed. Without an endpoint the answers are written, and the claims stay open.
"""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import wilson, with_seeds
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.data.sources import BadRecord, open_source
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.answers import Answers, AnswersResult
from contextwise.evaluation.measures.judging.files import Benchmark, read_questions, read_references
from contextwise.evaluation.measures.judging.judge import Endpoint, judge_answers, read_key
from contextwise.evaluation.measures.judging.requests import Match
from contextwise.experiments.run_set import Arm, RunSet
from contextwise.reproductions.claims import Better, Claim, above, undecided
from contextwise.reproductions.item import Item, Outcome, corpus_folder, prepared_once, registered
from contextwise.reproductions.models import TrainedModels
from contextwise.reproductions.tables import Plot, points, seeds_behind, table_of

NO_JUDGE = "no judge was named; give one with --set endpoint=URL --set judge_model=NAME, and the answers are judged"
TUNED = "-SFT"
"""Ends the name of a model's run that is tuned on instructions."""


@registered("instruction_answers")
class InstructionAnswers(TrainedModels):
    """Models tuned on instructions, and their answers judged."""

    tuning: dict[str, Any] = Field(description="a recipe without corpus and model, the same for all models")
    instructions: Path | None = Field(default=None, description="of Alpaca's form: instruction, input, output")
    instructions_validation: float = Field(default=0.05, gt=0, lt=1, description="share held out of the instructions")
    questions: Path | None = Field(default=None, description="MT-Bench's, or AlpacaEval's")
    references: Path | None = Field(default=None, description="MT-Bench's reference answers")
    pairwise: bool = Field(
        default=False, description="compare the answers of each of the claims instead of rating them"
    )
    length_controlled: bool = Field(default=False, description="with pairwise: also the win rate at equal lengths")
    limit: int | None = Field(default=None, ge=1, description="use only the first questions, up to this number")
    max_new_tokens: int = Field(default=1024, ge=1)
    temperature: float | Literal["published"] = 0.0
    endpoint: str | None = Field(default=None, description="the judge's base URL, such as http://localhost:8000/v1")
    judge_model: str | None = Field(default=None, description="the judge's name there")
    key_file: Path | None = Field(default=None, description="with the endpoint's key; not given: OPENAI_API_KEY")
    judge_tokens: int = Field(default=2048, ge=1, description="of an answer of the judge at most")
    concurrency: int = Field(default=4, ge=1, description="requests to the judge at once")

    @model_validator(mode="after")
    def _judgeable(self) -> "InstructionAnswers":
        if (self.endpoint is None) != (self.judge_model is None):
            given, lacking = ("endpoint", "judge_model") if self.endpoint else ("judge_model", "endpoint")
            raise ConfigError(f"{given} is given without {lacking}; give both, or neither")
        if self.length_controlled and not self.pairwise:
            raise ConfigError("length_controlled is for answers that are compared; give pairwise: true too")
        if not self.claims:
            raise ConfigError("claims name no pair of models whose answers are to be compared")
        return self

    def run_set(self, folder: Path) -> RunSet:
        """The models, and each one tuned."""
        data = {**self.tuning.get("data", {}), "corpus": str(self.instruction_corpus(folder))}
        recipe = {"objective": "instruction", **self.tuning, "data": data}
        tuned = {f"{name}{TUNED}": Arm(recipe={**recipe, "model": {"pretrained": f"@{name}"}}) for name in self.models}
        return self.runs_of({**self.models, **tuned}, folder)

    def instruction_corpus(self, folder: Path) -> Path:
        """Where the instructions' corpus is, or will be."""
        given = self.instructions
        source = "instructions" if given is None else f"alpaca:{given}"
        return corpus_folder(folder, source, self.known_tokenizer(folder), self.instructions_validation)

    def measure(self, item: Item, folder: Path) -> Outcome:
        questions = self._checked()
        tuned = self._tuned(folder)
        results = {name: [measure(run.path, self._answering(name)) for run in runs] for name, runs in tuned.items()}
        answers = {name: [result.file for result in seeds] for name, seeds in results.items()}
        files = {name: [str(path.relative_to(folder)) for path in seeds] for name, seeds in answers.items()}
        outcome = Outcome([answers_table(tuned, results)], [], {"answers": files}, self.run_set(folder).paths)
        if self.endpoint is None:
            say(f"note: {NO_JUDGE}")
            outcome.claims = [Claim.of(claim.text, undecided(NO_JUDGE)) for claim in self.claims]
            return outcome
        for pair in self.claims:
            summaries = self._judged(pair, answers, questions, folder)
            outcome.figures.setdefault("judged", {})[f"{pair.better} against {pair.than}"] = summaries
            table, claim = _compared(pair, summaries) if self.pairwise else _rated(pair, summaries)
            outcome.tables.append(table)
            outcome.claims.append(claim.over_seeds(len(self.seeds)))
            if not self.pairwise:
                outcome.plots.append(_figure(pair, summaries))
        return outcome

    def _checked(self) -> Path:
        """The questions' file, after a check of all settings and files, before any training."""
        if self.instructions is None or not self.instructions.is_file():
            given = self.instructions
            what = "no instructions are given" if given is None else f"there is no file {given}"
            raise DataError(
                f"{what}; give a file of Alpaca's form (instruction, input, output) with --set instructions=FILE"
            )
        check_instructions(self.instructions)
        if self.questions is None:
            raise DataError(
                "no questions are given; give MT-Bench's question.jsonl or AlpacaEval's alpaca_eval.json with "
                "--set questions=FILE"
            )
        self._answering("model")
        self._check_judging(read_questions(self.questions)[0])
        return self.questions

    def _check_judging(self, benchmark: Benchmark) -> None:
        """Check that the settings of the judge fit the questions, and that their package is installed."""
        if benchmark == "alpaca-eval" and not self.pairwise:
            raise ConfigError(
                f"{self.questions} holds AlpacaEval's instructions, whose answers are compared and not rated; give MT-Bench's "
                "questions, or --set pairwise=true"
            )
        if self.references is not None:
            read_references(self.references)
        if self.endpoint is None:
            return
        self._endpoint()
        if not self.length_controlled:
            return
        leave = "leave it out with --set length_controlled=false"
        if benchmark == "mt-bench":
            raise ConfigError(f"length_controlled is for AlpacaEval's instructions, not for MT-Bench; {leave}")
        if importlib.util.find_spec("alpaca_eval") is None:
            raise ConfigError(
                f"length_controlled needs the alpaca_eval package, which is not installed; pip install alpaca_eval, or {leave}"
            )

    def _answering(self, name: str) -> Answers:
        return self.settings_of(Answers, "questions", "max_new_tokens", "temperature", "limit", model_id=name)

    def _endpoint(self) -> Endpoint:
        parameters = {"temperature": 0, "max_tokens": self.judge_tokens}
        return Endpoint(self.endpoint or "", self.judge_model or "", read_key(self.key_file), parameters=parameters)

    def _tuned(self, folder: Path) -> dict[str, list[RunFolder]]:
        """The tuned models, seed by seed; pretrained and tuned where that has not been done."""
        self.prepared(folder)
        bases = super().run_set(folder)
        bases.train_missing(self.executor.processes)
        corpus, source = self.instruction_corpus(folder), f"alpaca:{self.instructions}"
        prepared_once(source, bases.runs[0].folder, corpus, self.instructions_validation)
        runs = self.train(folder)
        return {name: runs.folders(f"{name}{TUNED}") for name in self.models}

    def _judged(
        self, pair: Better, answers: dict[str, list[Path]], questions: Path, folder: Path
    ) -> list[dict[str, Any]]:
        """The summaries of a judge's verdicts on one pair, seed by seed."""
        kind = "compared" if self.pairwise else "rated"
        summaries = []
        for seed, better, than in zip(self.seeds, answers[pair.better], answers[pair.than], strict=True):
            given = [better] if self.pairwise else [than, better]
            match = Match.read(given, than if self.pairwise else None, questions, self.references, self.limit)
            label = f"{kind}-{pair.better}-{pair.than}-s{seed}-by-{Path(self.judge_model or '').name}"
            summary = judge_answers(
                match,
                self._endpoint(),
                folder / "judged" / re.sub(r"[^\w.-]+", "-", label),
                concurrency=self.concurrency,
                length_controlled=self.length_controlled,
            )
            assert summary is not None  # only a dry run has none
            summaries.append(summary)
        return summaries


def check_instructions(path: Path) -> None:
    """Check that the first record is an instruction."""
    first = next(iter(open_source(f"alpaca:{path}").records("output")), None)
    if first is None:
        raise DataError(f"{path} holds no instructions; give a file of Alpaca's form")
    if isinstance(first, BadRecord):
        raise DataError(f"{first.where}: {first.why}; give a file of Alpaca's form (instruction, input, output)")


def answers_table(tuned: dict[str, list[RunFolder]], answers: dict[str, list[AnswersResult]]) -> Table:
    """Each model's loss on held-out instructions, mean over seeds, and how long its answers are."""
    rows = []
    for name, seeds in answers.items():
        answered = [row for result in seeds for row in result.rows]
        texts = [text for row in answered for text in texts_of(row)]
        too_long = sum(problem is not None for row in answered for problem in row.get("errors", []))
        losses = [run.metrics("validation") for run in tuned[name]]
        loss = np.mean([of_seed[-1]["loss"] for of_seed in losses]) if all(losses) else None
        words, empty = np.mean([len(text.split()) for text in texts]), sum(not text.strip() for text in texts)
        rows.append([name, loss, len(texts), words, empty, too_long])
    return table_of(
        f"Tuned models, {seeds_behind(len(seeds))}: loss on held-out responses, nats per token, and their answers; too long: "
        "for the model's positions",
        ["model", ("loss", ".4f"), ("answers", ","), ("words each", ".1f"), ("empty", ","), ("too long", ",")],
        rows,
    )  # fmt: skip


def texts_of(row: dict[str, Any]) -> list[str]:
    """The answers in a row of MT-Bench's or AlpacaEval's form."""
    return row["choices"][0]["turns"] if "choices" in row else [row["output"]]


def mean_over_seeds(of_seeds: list[Estimate | None]) -> Estimate | None:
    """The mean of estimates about the same questions, one of each seed; None where one is missing.

    The interval over questions is the mean of the seeds' own, which is at least as wide as that of their mean; the part of the
    seeds is added.
    """
    known = [estimate for estimate in of_seeds if estimate is not None]
    if len(known) < len(of_seeds):
        return None
    values = np.array([each.value for each in known])
    if not all(each.has_interval for each in known):
        return Estimate(float(values.mean()))
    low, high = np.mean([each.limits for each in known], axis=0)
    return with_seeds(replace(known[0], value=float(values.mean()), low=float(low), high=float(high)), values)


def _rated(claim: Better, summaries: list[dict[str, Any]]) -> tuple[Table, Claim]:
    judged = _judged_words(summaries)
    title = f"Ratings by {summaries[0]['judge']}, from 1 to 10, {judged}"
    parts = {name: _by_category(summaries, name) for name in (claim.than, claim.better)}
    rows = [
        [category, *(values.get(category) for values in parts.values())]
        for category in dict.fromkeys(category for values in parts.values() for category in values)
    ]
    table = table_of(title, ["category", *((name, ".2f") for name in parts)], rows)
    measured = [summary["differences"][f"{claim.better} - {claim.than}"] for summary in summaries]
    difference = mean_over_seeds([None if each is None else Estimate.from_dict(each) for each in measured])
    if difference is None:
        return table, Claim.of(claim.text, undecided("no answer of both was rated"), judged)
    verdict = above(difference)
    if any(each["low"] is not None and each["low"] == each["high"] for each in measured):
        verdict = undecided("all questions agree, so the uncertainty of the mean is unknown")
    return table, claim.decided(verdict, f": {difference:+.2f}; {judged}")


def _by_category(summaries: list[dict[str, Any]], name: str) -> dict[str, Estimate | None]:
    """A model's ratings by category and of all questions, mean over seeds."""
    rated = [{**summary["models"][name]["categories"], "all": summary["models"][name]["all"]} for summary in summaries]
    measured = {category: [of_seed.get(category) for of_seed in rated] for category in rated[0]}
    return {
        category: mean_over_seeds([None if each is None else Estimate.from_dict(each) for each in of_seeds])
        for category, of_seeds in measured.items()
    }


def _compared(claim: Better, summaries: list[dict[str, Any]]) -> tuple[Table, Claim]:
    judged = _judged_words(summaries)
    judge, verdicts = summaries[0]["judge"], summaries[0]["verdicts"]
    title = f"Against {claim.than}, both orders, judged by {judge}, verdicts from {verdicts}; {judged}"
    counts = ["wins", "ties", "losses", "verdicts_that_follow_the_order"]
    rate = mean_over_seeds([win_rate(summary["all"]) for summary in summaries])
    percent = None if rate is None else rate.scaled(100)
    columns: list[str | tuple[str, str]] = ["model", ("win rate %", ".2f")]
    columns += [(name, ",") for name in (*counts[:3], "follow the order")]
    row = [claim.better, percent, *(sum(summary[name] for summary in summaries) for name in counts)]
    controlled = [summary["length_controlled"] for summary in summaries]
    if None not in controlled:
        columns, row = [*columns, ("LC win rate %", ".2f")], [*row, 100 * np.mean(controlled)]
    table = table_of(title, columns, [row])
    if rate is None:
        return table, Claim.of(claim.text, undecided("no comparison has a verdict in both orders"), judged)
    return table, Claim.of(claim.text, above(rate, 0.5), f"win rate {percent:.2f}%; {judged}")


def win_rate(measured: dict[str, Any] | None) -> Estimate | None:
    """A summary's win rate; with Wilson's interval where the questions agree, which have no spread."""
    if measured is None:
        return None
    questions = measured["questions"]
    agree = measured["low"] == measured["high"]
    rate = wilson(measured["value"], questions) if agree else Estimate.from_dict(measured)
    return replace(rate, documents=questions)


def _judged_words(summaries: list[dict[str, Any]]) -> str:
    """How much was judged, and whether anything is missing."""
    first = summaries[0]
    judgments, without, missing = (
        sum(summary[name] for summary in summaries) for name in ("judgments", "without_verdict", "missing")
    )
    words = f"{first['questions']:,} questions, {seeds_behind(len(summaries))}, 95% intervals"
    if without:
        words += f"; {without:,} of {judgments:,} judgments without a verdict"
    if missing:
        why = next(summary["why_missing"] for summary in summaries if summary["missing"])
        words += f"; {missing:,} judgments are missing ({why}), run the same command again to request them"
    return words


def _figure(pair: Better, summaries: list[dict[str, Any]]) -> Plot:
    """Ratings of two models by category."""
    by_model = {name: _by_category(summaries, name) for name in (pair.than, pair.better)}
    series = {
        name: points({category: rating for category, rating in ratings.items() if category != "all"})
        for name, ratings in by_model.items()
    }
    title = f"MT-Bench by category: {pair.better} and {pair.than}"
    return Plot(title, "category", "rating", series, kind="bars")
