"""Models tuned on instructions with one recipe, their answers, and a judge's verdicts on them (ContextLM, Section 3.4).

FastChat's ratings (Figure 3) or alpaca_eval's preferences (Table 4) are read, seed by seed. Where they do not exist yet, the
claims stay open, and a note gives the command that makes them.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.files import atomic_write
from contextwise.base.runs import RunFolder
from contextwise.data import BadRecord, Form, checked, open_source, read_objects
from contextwise.measures import measure
from contextwise.report import Table, say
from contextwise.runset import Arm, RunSet
from contextwise.settings import ConfigError, DataError
from contextwise.stats import Estimate, estimate, wilson, with_seeds
from contextwise_papers.claims import Better, Claim, above, undecided
from contextwise_papers.contextlm.answers import Answers, AnswersResult, Benchmark, Question, read_questions
from contextwise_papers.item import Item, Outcome, corpus_folder, prepared_once
from contextwise_papers.models import TrainedModels
from contextwise_papers.tables import Plot, points, seeds_behind, table_of

TUNED = "-SFT"
"""Ends the name of a model's run that is tuned on instructions."""
Values = dict[tuple[int | str, int], float]
"""(question, turn) -> rating, or share of a win."""
Questions = Mapping[int | str, Question]


class _Rating(Form):
    """A row of FastChat's ``model_judgment/JUDGE_single.jsonl``; ``score`` is -1 where the judge gave none."""

    question_id: int | str
    model: str
    judge: list[str] = Field(min_length=1)
    user_prompt: str
    score: float
    turn: int = Field(ge=1)


class _Preference(Form):
    """An entry of alpaca_eval's ``annotations.json``: 1 for the reference's output to 2 for the model's; a tie is 1.5 or 0."""

    instruction: str
    output_1: str
    output_2: str
    generator_1: str
    generator_2: str
    annotator: str
    preference: float | None


@dataclass
class Judged:
    """What judges said of the answers of a model, or of a model and its reference: ratings, or shares of wins.

    ``judged`` has the last judgment of each answer, None without a verdict; ``controlled`` are alpaca_eval's length-controlled
    win rates, in percent.
    """

    judges: set[str] = field(default_factory=set)
    judged: dict[tuple[str, ...], dict[tuple[int | str, int], float | None]] = field(default_factory=dict)
    controlled: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, of: tuple[str, ...], judge: str, key: tuple[int | str, int], value: float | None) -> None:
        self.judges.add(judge)
        self.judged.setdefault(of, {})[key] = value

    @property
    def values(self) -> dict[tuple[str, ...], Values]:
        """Verdicts by question and turn, of what has any."""
        verdicts = {
            of: {key: value for key, value in rows.items() if value is not None} for of, rows in self.judged.items()
        }
        return {of: values for of, values in verdicts.items() if values}

    @property
    def without(self) -> Counter[tuple[str, ...]]:
        """Answers whose last judgment has no verdict."""
        return Counter({of: sum(value is None for value in rows.values()) for of, rows in self.judged.items()})


class InstructionAnswers(TrainedModels, name="instruction_answers"):
    """Models tuned on instructions, and their answers judged."""

    tuning: dict[str, Any] = Field(description="a recipe without corpus and model, the same for all models")
    instructions: Path | None = Field(default=None, description="of Alpaca's form: instruction, input, output")
    instructions_validation: float = Field(default=0.05, gt=0, lt=1, description="share held out of the instructions")
    benchmark: Benchmark = Field(description="mt-bench: answers are rated; alpaca-eval: compared with another model's")
    questions: Path | None = Field(default=None, description="MT-Bench's, or AlpacaEval's")
    judgments: Path | None = Field(
        default=None, description="folder with what FastChat or alpaca_eval wrote; not given: judged/, beside answers/"
    )
    limit: int | None = Field(default=None, ge=1, description="use only the first questions, up to this number")
    max_new_tokens: int = Field(default=1024, ge=1)
    temperature: float | Literal["published"] = 0.0

    @model_validator(mode="after")
    def _has_claims(self) -> "InstructionAnswers":
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
        labels = {name: [label(name, seed) for seed in self.seeds] for name in tuned}
        results = {
            name: [measure(run.path, self._answering(own)) for own, run in zip(labels[name], runs, strict=True)]
            for name, runs in tuned.items()
        }
        files = {
            name: [handed_over(answers, own, folder) for own, answers in zip(labels[name], of_seeds, strict=True)]
            for name, of_seeds in results.items()
        }
        shown = {name: [str(file.relative_to(folder)) for file in of_seeds] for name, of_seeds in files.items()}
        outcome = Outcome([answers_table(tuned, results)], [], {"answers": shown}, self.run_set(folder).paths)
        texts = {
            (own, row.get("question_id", row.get("instruction"))): texts_of(row)
            for name, of_seeds in results.items()
            for own, answers in zip(labels[name], of_seeds, strict=True)
            for row in answers.rows
        }
        rated = self.benchmark == "mt-bench"
        judged = (read_ratings if rated else read_preferences)(self.judgments or folder / "judged", texts)
        if len(judged.judges) > 1:
            raise DataError(
                f"the answers have judgments of {', '.join(sorted(judged.judges))}; give those of one judge"
            )
        for pair in self.claims:
            than, better = labels[pair.than], labels[pair.better]
            of: list[tuple[str, ...]] = list(zip(better, than, strict=True))
            if rated:
                of = [(own,) for own in (*than, *better)]
            if not all(each in judged.values for each in of):
                command = _how_to_judge(self.benchmark, files, pair, folder)
                say(f"note: {pair.better} against {pair.than}: {command}")
                outcome.claims.append(Claim.of(pair.text, undecided(command)))
                continue
            words = _judged_words(judged, of, self.seeds, questions)
            if rated:
                table, claim, plot = _rated(pair, judged, of, words, questions)
                outcome.plots.append(plot)
            else:
                table, claim = _compared(pair, judged, of, words)
            outcome.tables.append(table)
            outcome.claims.append(claim.over_seeds(len(self.seeds)))
        return outcome

    def _checked(self) -> dict[int | str, Question]:
        """The questions, after a check of all settings and files, before any training."""
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
        benchmark, questions = read_questions(self.questions)
        if benchmark != self.benchmark:
            raise ConfigError(
                f"{self.questions} holds questions of {benchmark}, not of {self.benchmark}; give --set questions=FILE"
            )
        if self.judgments is not None and not self.judgments.is_dir():
            raise DataError(f"there is no folder {self.judgments}; give the one with the judgments")
        return {question.id: question for question in questions[: self.limit]}

    def _answering(self, name: str) -> Answers:
        return self.settings_of(Answers, "questions", "max_new_tokens", "temperature", "limit", model_id=name)

    def _tuned(self, folder: Path) -> dict[str, list[RunFolder]]:
        """The tuned models, seed by seed; pretrained and tuned where that has not been done."""
        self.prepared(folder)
        bases = super().run_set(folder)
        bases.train_missing(self.executor)
        corpus, source = self.instruction_corpus(folder), f"alpaca:{self.instructions}"
        prepared_once(source, bases.runs[0].folder, corpus, self.instructions_validation)
        runs = self.train(folder)
        return {name: runs.folders(f"{name}{TUNED}") for name in self.models}


def label(name: str, seed: int) -> str:
    """The name of a model of one seed in the files of answers and judgments."""
    return re.sub(r"[^\w.-]+", "-", f"{name}-s{seed}")


def handed_over(answers: AnswersResult, name: str, folder: Path) -> Path:
    """A copy of the answers that is called after the model, which FastChat needs."""
    copy = folder / "answers" / f"{name}{answers.file.suffix}"
    copy.parent.mkdir(exist_ok=True)
    atomic_write(copy, answers.file.read_text())
    return copy


def _how_to_judge(benchmark: Benchmark, files: dict[str, list[Path]], pair: Better, folder: Path) -> str:
    """The command whose results are read."""
    better, than = files[pair.better], files[pair.than]
    if benchmark == "mt-bench":
        models = " ".join(file.stem for file in (*better, *than))
        return (
            f"no seed's answers are all rated; copy {folder / 'answers'}/*.jsonl to FastChat's data/mt_bench/model_answer, run "
            f"python gen_judgment.py --model-list {models} there in fastchat/llm_judge, and give its "
            "data/mt_bench/model_judgment with --set judgments=FOLDER"
        )
    return (
        f"not every seed's answers are compared; run alpaca_eval --model_outputs {better[0]} --reference_outputs {than[0]} "
        f"--output_path {folder / 'judged' / better[0].stem}-{than[0].stem}, so for each seed, and this command again"
    )


def read_ratings(folder: Path, texts: Mapping[tuple[str, int | str], list[str]]) -> Judged:
    """FastChat's ratings of these answers; where an answer has several, the last one counts."""
    judged = Judged()
    for path in sorted(folder.rglob("*_single.jsonl")):
        for where, values in read_objects(path, "FastChat's judgments"):
            row = checked(_Rating, values, where, "FastChat's judgments")
            turns = texts.get((row.model, row.question_id))
            if turns is not None:
                _check_same(row.turn <= len(turns) and turns[row.turn - 1] in row.user_prompt, where, row.model)
                score = row.score if row.score >= 0 else None
                judged.add((row.model,), row.judge[0], (row.question_id, row.turn), score)
    return judged


def read_preferences(folder: Path, texts: Mapping[tuple[str, int | str], list[str]]) -> Judged:
    """alpaca_eval's preferences between these answers, and its length-controlled win rates."""
    judged = Judged()
    for path in sorted(folder.rglob("annotations.json")):
        pairs = set()
        for where, values in read_objects(path, "alpaca_eval's annotations"):
            row = checked(_Preference, values, where, "alpaca_eval's annotations")
            ours, theirs = (texts.get((name, row.instruction)) for name in (row.generator_2, row.generator_1))
            if ours is not None and theirs is not None:
                _check_same([*ours, *theirs] == [row.output_2, row.output_1], where, row.generator_2)
                pairs.add((row.generator_2, row.generator_1))
                share = None if row.preference is None else (row.preference or 1.5) - 1
                judged.add((row.generator_2, row.generator_1), row.annotator, (row.instruction, 1), share)
        board = path.parent / "leaderboard.csv"
        if len(pairs) == 1 and board.is_file():
            (pair,) = pairs
            with board.open(newline="") as file:
                rates = {row[""]: row.get("length_controlled_winrate") for row in csv.DictReader(file)}
            if rate := rates.get(pair[0]):
                judged.controlled[pair] = float(rate)
    return judged


def _check_same(same: bool, where: str, model: str) -> None:
    if not same:
        raise DataError(f"{where} judges another answer of {model} than the present one; judge the present answers")


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


def mean(values: Values) -> Estimate | None:
    """The mean over questions and turns with its interval over questions, whose turns stay together; None without a value."""
    if not values:
        return None
    of_question: dict[int | str, list[float]] = defaultdict(list)
    for (question, _), value in values.items():
        of_question[question].append(value)
    weights = np.array([len(turns) for turns in of_question.values()], dtype=np.float64)
    return estimate([np.array([[sum(turns) for turns in of_question.values()]])], weights)


def _rated(
    claim: Better, judged: Judged, of: list[tuple[str, ...]], words: str, questions: Questions
) -> tuple[Table, Claim, Plot]:
    """Ratings of two models by category; ``of``: the seeds of the one that the claim compares to, then the better one's."""
    values = [judged.values[each] for each in of]
    than, better = values[: len(of) // 2], values[len(of) // 2 :]
    parts = [by_category(of_seeds, questions) for of_seeds in (than, better)]
    rows = [[category, *(ratings.get(category) for ratings in parts)] for category in parts[0] | parts[1]]
    title = f"Ratings by {next(iter(judged.judges))}, from 1 to 10, {words}"
    table = table_of(title, ["category", (claim.than, ".2f"), (claim.better, ".2f")], rows)
    series = {
        name: points({category: rating for category, rating in ratings.items() if category != "all"})
        for name, ratings in zip((claim.than, claim.better), parts, strict=True)
    }
    plot = Plot(f"MT-Bench by category: {claim.better} and {claim.than}", "category", "rating", series, kind="bars")
    differences = [
        mean({key: ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys(), key=str)})
        for ours, theirs in zip(better, than, strict=True)
    ]
    difference = mean_over_seeds(differences)
    if difference is None:
        return table, Claim.of(claim.text, undecided("no answer of both was rated"), words), plot
    verdict = above(difference)
    if any(each is not None and each.has_interval and each.low == each.high for each in differences):
        verdict = undecided("all questions agree, so the uncertainty of the mean is unknown")
    return table, claim.decided(verdict, f": {difference:+.2f}; {words}"), plot


def by_category(of_seeds: Sequence[Values], questions: Questions) -> dict[str, Estimate | None]:
    """A model's ratings by category and of all questions, mean over seeds."""
    categories = dict.fromkeys(questions[question].category for values in of_seeds for question, _ in values)
    parts = {
        category: [{k: v for k, v in values.items() if questions[k[0]].category == category} for values in of_seeds]
        for category in categories
    }
    return {
        name: mean_over_seeds([mean(values) for values in part]) for name, part in (parts | {"all": of_seeds}).items()
    }


def _compared(claim: Better, judged: Judged, of: list[tuple[str, ...]], words: str) -> tuple[Table, Claim]:
    shares = [share for pair in of for share in judged.values[pair].values()]
    rate = mean_over_seeds([win_rate(judged.values[pair]) for pair in of])
    assert rate is not None
    columns: list[Any] = ["model", ("win rate %", ".2f"), ("wins", ","), ("ties", ","), ("losses", ",")]
    counts = [sum(share > 0.5 for share in shares), shares.count(0.5), sum(share < 0.5 for share in shares)]
    row = [claim.better, rate.scaled(100), *counts]
    if all(pair in judged.controlled for pair in of):
        columns.append(("LC win rate %", ".2f"))
        row.append(np.mean([judged.controlled[pair] for pair in of]))
    table = table_of(f"Against {claim.than}, preferences by {next(iter(judged.judges))}; {words}", columns, [row])
    return table, Claim.of(claim.text, above(rate, 0.5), f"win rate {rate.scaled(100):.2f}%; {words}")


def win_rate(shares: Values) -> Estimate | None:
    """The mean share of wins; with Wilson's interval where the questions agree, which have no spread."""
    measured = mean(shares)
    if measured is None or measured.low != measured.high:
        return measured
    return replace(wilson(measured.value, len(shares)), documents=len(shares))


def _judged_words(judged: Judged, of: Sequence[tuple[str, ...]], seeds: Sequence[int], questions: Questions) -> str:
    """How much was judged, and whether anything is missing."""
    known, without = sum(len(judged.values[each]) for each in of), sum(judged.without[each] for each in of)
    missing = len(of) * sum(len(question.turns) for question in questions.values()) - known - without
    words = f"{len(questions):,} questions, {seeds_behind(len(seeds))}, 95% intervals"
    words += f"; {without:,} judgments without a verdict" if without else ""
    return words + (f"; {missing:,} judgments are missing" if missing > 0 else "")
