"""Models on long synthetic texts, of which more and more is hidden: intrinsic entropy, Figures 5, 9, A.3-1 and A.3-2.

Figure 5 is the perplexity of an answer that depends on two needles; the others are RULER's accuracy at each visible context.
Figure 9's right half (A.2) is the entropy, by a Gaussian kernel density, of the features at the last token of the same prompts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from contextwise.report import Table
from contextwise.settings import ConfigError
from contextwise.stats import Estimate, correlation_estimate, mean_estimate
from contextwise_evals.ruler import FRACTIONS, Ruler, TaskName
from contextwise_papers.claims import Claim, Verdict, above, all_hold, below, opposite, undecided
from contextwise_papers.intrinsic_entropy.density import density_directions, kde_entropy, leading_directions
from contextwise_papers.intrinsic_entropy.entropy import LEAST_SAMPLES
from contextwise_papers.intrinsic_entropy.needles import STEPS, Needles, needles_table
from contextwise_papers.intrinsic_entropy.ruler_features import RulerFeatures
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import GivenModel
from contextwise_papers.tables import Plot, point, points, table_of

_ANSWERS = np.convolve(np.ones(4), np.ones(4)) / 16
GUESS = float(-(_ANSWERS * np.log(_ANSWERS)).sum())
"""Nats of an answer for who knows only how often each is right: a needle's number is 1 to 4, and so is what the other adds."""
CHANCE = 0.05
"""Accuracy that counts as answering nothing; RULER's answers are looked for in free text, and are hardly found by guessing."""


class NeedleCurves(GivenModel, name="needle_curves"):
    """Perplexity of the answer against masked tokens, and what it costs to lose the first needle and then the second."""

    length: int = Field(default=1024, ge=64, description="tokens of a text")
    samples: int = Field(default=50, ge=2, description="texts")
    seed: int = Field(default=0, ge=0)

    def tokens_read(self) -> int:
        # From nothing masked to all of it, in even steps.
        return self.samples * self.length * (STEPS + 1) // 2

    def measure(self, item: Item, folder: Path) -> Outcome:
        settings = self.settings_of(Needles, "length", "samples", "seed")
        summary = self.measured(settings, folder).summary
        rows = summary["rows"]
        title = f"{self.samples} texts of up to {self.length:,} tokens, the answer's loss; 95% intervals over texts"
        table = needles_table(summary, title)
        series = {"perplexity": points({row["masked"]: row["perplexity"] for row in rows})}
        plot = Plot("Perplexity of the answer", "masked left tokens", "perplexity", series, logarithmic="y")
        return Outcome([table], needle_claims(summary), {"rows": rows}, self.run_set(folder).paths, [plot])


def needle_claims(summary: dict[str, Any]) -> list[Claim]:
    """The claims of the figure; decided only for a model that, with both needles in view, answers better than a guess.

    The interval of its mean loss over texts must lie below :data:`GUESS`.
    """
    losses = needle_losses(summary)
    first, second, difference = needle_costs(losses)
    seen = mean_estimate(losses[:, 0]) if len(losses) else Estimate(float("nan"))
    answers = below(seen, GUESS).holds
    unanswered = undecided(f"the model does not answer: {seen:.2f} nats with both in view, and a guess has {GUESS:.2f}")
    rises, less = (above(cost) if answers else unanswered for cost in (first, difference))
    evidence = f"then {second:+.3f}; first minus second {difference:+.3f}"
    return [
        Claim.of("the answer's perplexity rises when the first needle is masked", rises, f"{first:+.3f} nats"),
        Claim.of("and far less when the second one is masked as well", less, evidence),
    ]


def needle_losses(summary: dict[str, Any]) -> np.ndarray:
    """(texts, 3) mean nats of the whole answer with both needles whole in view, with the second alone, and with none.

    Texts that lack one of the three are left out.
    """
    masked = [row["masked"] for row in summary["rows"]]
    losses = []
    for example in summary["examples"]:
        nats = np.array(example["nats"])
        left = example["text_tokens"] - np.array(masked)
        far, near = (np.array(needle[1]) <= left for needle in example["needles"])
        states = [far & near, near & ~far, ~near]
        if all(state.any() for state in states):
            losses.append([nats[state].mean() for state in states])
    return np.array(losses).reshape(-1, 3)


def needle_costs(losses: np.ndarray) -> list[Estimate]:
    """Cost of losing the first needle, of losing the second as well, and the first cost minus the second.

    Nats of the whole answer, with intervals over texts, by which the costs are paired; from :func:`needle_losses`.
    """
    if not len(losses):
        return [Estimate(float("nan"))] * 3
    both, second, none = losses.T
    return [mean_estimate(cost) for cost in (second - both, none - second, 2 * second - both - none)]


class RulerCurves(GivenModel, name="ruler_curves"):
    """Questions at every visible context, for each γ of the law of positions and each length of the texts."""

    tasks: list[TaskName] = Field(min_length=1, description="of qa_1, fwe, cwe, vt; qa_1 needs `qa`")
    at_longest: list[TaskName] = Field(default=[], description="those that are said to be best with the whole text")
    gammas: list[float] = Field(default=[0.0], min_length=1, description="γ of P(x) ~ (1 - x/L)^γ")
    lengths: list[int] = Field(min_length=1, description="tokens of a text, at most")
    samples: int = Field(default=100, ge=2, description="questions of each task")
    entropy_samples: int = Field(
        default=0, ge=0, description="texts of each task whose features' entropy is measured; 0: it is not measured"
    )
    qa: Path | None = Field(default=None, description="questions in SQuAD's form")
    chat: bool = Field(default=False, description="ask through the model's chat template")
    example: bool = Field(default=True, description="a worked example before questions of vt and cwe")
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _questions(self) -> "RulerCurves":
        if "qa_1" in self.tasks and self.qa is None:
            raise ConfigError("the task qa_1 needs questions; give a file in SQuAD's form with --set qa=FILE")
        if 0 < self.entropy_samples < LEAST_SAMPLES:
            raise ConfigError(
                f"entropy_samples is {self.entropy_samples}, but a kernel density takes {LEAST_SAMPLES} texts or more; give as "
                "many, or 0 to leave the entropy out"
            )
        return self

    def tokens_read(self) -> int:
        visible = sum(int(length * part) for length in self.lengths for part in FRACTIONS)
        return len(self.tasks) * (len(self.gammas) * self.samples + self.entropy_samples) * visible

    def measure(self, item: Item, folder: Path) -> Outcome:
        shared = ("tasks", "samples", "seed", "chat", "example", "qa")
        settings = [
            self.settings_of(Ruler, *shared, length=length, gamma=gamma)
            for length, gamma in itertools.product(self.lengths, self.gammas)
        ]
        results = {(own.length, own.gamma): self.measured(own, folder).summary["results"] for own in settings}
        tables, plots, claims = [], [], []
        for task in self.tasks:
            rows: list[list[Any]] = []
            series: dict[str, list[dict[str, Any]]] = {}
            for (length, gamma), result in results.items():
                name = f"{length:,} tokens, γ = {gamma:g}"
                for row in result[task]["accuracies"]:
                    series.setdefault(name, []).append(point(row["visible"], row["accuracy"]))
                    rows.append([name, *(row[key] for key in ("visible", "accuracy", "in_view", "best_share"))])
            title = f"{task}, {next(iter(results.values()))[task]['title']}: {self.samples} questions"
            columns = ["texts", ("visible", ","), ("accuracy", ".3f"), ("in view", ".0%"), ("best in", ".0%")]
            tables.append(table_of(title, columns, rows))
            plots.append(Plot(task, "visible tokens", "accuracy", series, logarithmic="x"))
            claims += optimum_claims(task, results, task in self.at_longest)
        figures: dict[str, Any] = {f"{length}-{gamma:g}": result for (length, gamma), result in results.items()}
        if self.entropy_samples:
            for task, length in itertools.product(self.tasks, self.lengths):
                entropies, directions = self.text_entropies(task, length, folder)
                by_gamma = {gamma: results[length, gamma][task]["accuracies"] for gamma in self.gammas}
                tables.append(entropy_table(task, length, entropies, directions, by_gamma))
                series = {"entropy": points(entropies)}
                title = f"{task}, {length:,} tokens: entropy by kernel density"
                plots.append(Plot(title, "visible tokens", "nats", series, logarithmic="x"))
                claims += entropy_claims(task, length, entropies, by_gamma)
                figures[f"entropy-{task}-{length}"] = entropies
        return Outcome(tables, claims, figures, self.run_set(folder).paths, plots)

    def text_entropies(self, task: TaskName, length: int, folder: Path) -> tuple[dict[int, float], int]:
        """Visible context -> entropy by kernel density in nats, and the number of leading directions that it is over.

        Of the prompts with the first γ: the document's entropy does not depend on it.
        """
        shared, qa = ("seed", "chat", "example"), self.qa if task == "qa_1" else None
        own = {"tasks": [task], "samples": self.entropy_samples, "length": length, "gamma": self.gammas[0], "qa": qa}
        result = self.measured(self.settings_of(RulerFeatures, *shared, **own), folder)
        features = {visible: result.features(visible) for visible in result.summary["settings"]["visible"]}
        directions = density_directions(*next(iter(features.values())).shape)
        return {v: kde_entropy(leading_directions(x_ND, directions)) for v, x_ND in features.items()}, directions


def entropy_table(
    task: str, length: int, entropies: dict[int, float], directions: int, by_gamma: dict[float, list[dict[str, Any]]]
) -> Table:
    """Entropy and accuracies at each visible context."""
    accuracies = {gamma: {row["visible"]: row["accuracy"] for row in rows} for gamma, rows in by_gamma.items()}
    columns = [("visible", ","), ("entropy, nats", ".3f"), *((f"accuracy, γ = {gamma:g}", ".3f") for gamma in by_gamma)]
    title = f"{task}, {length:,} tokens: entropy by kernel density over {directions} leading directions, and accuracy"
    rows = [[v, entropy, *(of_gamma[v] for of_gamma in accuracies.values())] for v, entropy in entropies.items()]
    return table_of(title, columns, rows)


def entropy_claims(
    task: str, length: int, entropies: dict[int, float], by_gamma: dict[float, list[dict[str, Any]]]
) -> list[Claim]:
    """Whether the entropy grows with the visible context, and correlates with each γ's accuracy (A.2).

    By correlations over visible contexts with Fisher's interval. Undecided for a model that answers nothing: the document
    claims it of models that are near the Bayes model.
    """
    where, values, best = f"{task}, {length:,} tokens: ", list(entropies.values()), 0.0
    growth = _correlation(np.log(list(entropies)).tolist(), values)
    against: dict[float, Estimate] = {}
    for gamma, rows in by_gamma.items():
        against[gamma] = _correlation(values, [row["accuracy"]["value"] for row in rows])
        best = max(best, *(row["accuracy"]["low"] for row in rows))
    at_chance = undecided(f"accuracy is at chance: at no visible context is it surely above {CHANCE:.0%}")
    grows, follows = above(growth), all_hold(above(each) for each in against.values())
    if best <= CHANCE:
        grows = follows = at_chance
    listed = "; ".join(f"γ = {gamma:g}: {correlation:.3f}" for gamma, correlation in against.items())
    return [
        Claim.of(
            f"{where}entropy grows with the visible context", grows, f"correlation with its logarithm {growth:.3f}"
        ),
        Claim.of(f"{where}entropy and accuracy correlate positively", follows, f"correlation {listed}"),
    ]


def _correlation(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Over visible contexts; NaN where one of the two is the same at all of them."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Estimate(float("nan"))
    return correlation_estimate(float(np.corrcoef(x, y)[0, 1]), len(x))


def optimum_claims(
    task: str, results: dict[tuple[int, float], dict[str, Any]], at_longest: bool = False
) -> list[Claim]:
    """Whether some visible context below the whole is best, in the longest texts, and whether it moves with γ.

    ``results``: (length, γ) -> task -> its entry of a RULER summary; ``at_longest``: the document claims the whole text as
    best.
    """
    results_of_task = {key: result[task] for key, result in results.items()}
    inner = {key: inner_optimum(result) for key, result in results_of_task.items()}
    longest_texts = max(length for length, _ in inner)
    words = {True: "below", False: "at the longest", None: "undecided"}
    listed = "; ".join(
        f"{length:,} tokens, γ = {gamma:g}: {words[verdict.holds]}" for (length, gamma), verdict in inner.items()
    )
    verdicts = [
        opposite(verdict) if at_longest else verdict
        for (length, _), verdict in inner.items()
        if length == longest_texts
    ]
    text = f"{task}: accuracy is best {'at' if at_longest else 'at one below'} the longest visible context"
    claims = [Claim.of(text, all_hold(verdicts), listed)]
    for length in dict.fromkeys(length for length, _ in results_of_task):
        by_gamma = {gamma: result for (n, gamma), result in sorted(results_of_task.items()) if n == length}
        if len(by_gamma) > 1:
            claims.append(_moves(task, length, by_gamma))
    return claims


def inner_optimum(result: dict[str, Any]) -> Verdict:
    """Whether a visible context below the longest one is better than it, by differences that are paired by question."""
    if result["optimum"] is None or len(result["accuracies"]) < 2:
        return undecided("all accuracies are equal, or there is one")
    *_, longest = result["accuracies"]
    if result["optimum"]["visible"] == longest["visible"]:
        return opposite(_surely_best(result))
    verdict = below(Estimate.from_dict(longest["minus_best"]))
    # The best was chosen among all of the shorter contexts: as many comparisons.
    return replace(verdict, comparisons=len(result["accuracies"]) - 1)


def _surely_best(result: dict[str, Any]) -> Verdict:
    """Whether every other visible context is worse than the best one."""
    best = result["optimum"]["visible"]
    others = [row for row in result["accuracies"] if row["visible"] != best]
    return all_hold(below(Estimate.from_dict(row["minus_best"])) for row in others)


def _moves(task: str, length: int, by_gamma: dict[float, dict[str, Any]]) -> Claim:
    """Whether a larger γ has a shorter best context; decided where each optimum is sure."""
    text = f"{task}, {length:,} tokens: the best visible context shrinks as γ grows"
    known = {gamma: result for gamma, result in by_gamma.items() if result["optimum"] is not None}
    optima = {gamma: result["optimum"] for gamma, result in known.items()}
    evidence = "; ".join(
        f"γ = {gamma:g}: {best['visible']:,} ({best['share']:.0%} of resamples)" for gamma, best in optima.items()
    )
    if len(known) < len(by_gamma):
        return Claim.of(text, undecided("all accuracies are equal"), evidence)
    contexts = np.array([best["visible"] for best in optima.values()])
    shrinks = bool((np.diff(contexts) <= 0).all() and contexts[-1] < contexts[0])
    sure = all_hold(map(_surely_best, known.values()))
    return Claim.of(text, sure if shrinks else opposite(sure), evidence)
