"""A trial: seeds of all arms, one after another, until every comparison with the reference is decided.

1. Check that the arms can be compared; time a few steps of each in alternation; fix the length of each arm's runs.
2. Search each arm's learning rates, on documents and seeds that no decision uses.
3. For each seed: train all open arms on the same windows in the same order, from the same values of the tensors that they
   share; score the held-out documents; look at the intervals; stop when all comparisons are decided.

The folder holds ``trial.yaml`` (settings) · ``plan.json`` (times of a step, and hashes of all inputs) · ``runs/`` ·
``seconds.json`` (wall time spent) · ``result.json`` (after each look). Everything but the plan and the wall time is computed
from the finished runs, so a trial that was killed at any instant resumes, and more seeds continue the same sequence.
"""

import contextlib
import itertools
import math
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError, ContextwiseError, NotFiniteError, TrainingError
from contextwise.base.estimates import as_json, count, duration, listed
from contextwise.base.files import exclusive, read_json, write_json
from contextwise.base.intervals import within_groups
from contextwise.base.machine import busy
from contextwise.base.progress import interruption, say
from contextwise.base.runs import RunFolder, differing_keys
from contextwise.comparison.decided import RESULT, Comparison
from contextwise.comparison.sequential import document_half_width, looks, simultaneous
from contextwise.comparison.speedup import effective_speedup, trend
from contextwise.data.metadata import texts_digest
from contextwise.experiments.cost import seconds_per_step
from contextwise.experiments.folder import Question
from contextwise.experiments.run_set import RunSet
from contextwise.experiments.trial.arms import Arms, Length, held_fixed, total_nats
from contextwise.experiments.trial.documents import SEARCH_SHARE, PlanOfTrial
from contextwise.experiments.trial.rates import ChosenRate, RateRow, best_factor, other_minima
from contextwise.experiments.trial.result import AlongBudgets, TrialPlan, TrialResult
from contextwise.experiments.trial.settings import TrialSettings, setting_in_words

SECONDS = "seconds.json"
TIMED_ROUNDS = {"time": 5, "flops": 2, "tokens": 2}
UNEQUAL_TIME = 0.05
"""Runs at equal time whose measured times differ by a larger share have a note."""
LOWER_RATE = "For another answer begin another trial (--out), with a lower rate or a lower training.clip for all arms."
SEARCH_SEED = 1_000_000
"""First seed of the search; those of the decision are smaller."""


class Spent(TypedDict):
    """Wall time that a trial has taken."""

    seconds: Annotated[float, ("type", "number"), ("minimum", 0)]


class Trial:
    """A planned or existing trial. The constructor trains and writes nothing.

    Raises:
        ConfigError, DataError: the arms cannot be compared, or the folder holds another trial.
    """

    def __init__(self, settings: TrialSettings) -> None:
        if settings.first_seed + settings.seeds > SEARCH_SEED:
            raise ConfigError(f"first_seed is {settings.first_seed}, but the seeds must be below {SEARCH_SEED}")
        self.settings, self.path = settings, settings.folder
        self.folder = Question(self.path, "trial")
        self.arms = Arms(settings)
        # Of each interval, so that all hold together with the trial's.
        self.confidence = simultaneous(settings.confidence, settings.shared_by * len(self.arms.budgets))
        self._refuse_other()
        self.factors: dict[str, float] = {}
        self.rates: list[RateRow] = []
        self.chosen_rates: list[ChosenRate] = []
        self._nats: dict[tuple[str, int, int], np.ndarray] = {}
        self._diverged: dict[str, str] = {}  # arm -> its first run whose loss was not finite, in words
        self._seconds: dict[tuple[str, int, int], float] = {}
        self._tokens_N = np.zeros(0)
        self._remark = ""  # on how the runs were scored
        self._spent, self._started = 0.0, time.monotonic()

    # ---- the folder ----

    def _refuse_other(self) -> None:
        """Refuse a folder with other files, or with a trial of another question that was looked at."""
        path = self.path
        if not self.folder.exists or not (path / RESULT).exists():
            return
        kept, new = self._kept_question(), self._question()
        different = differing_keys(kept, new)
        added = [name for name in new["arms"] if name not in kept["arms"]]
        different -= {f"{part}.{name}" for part in ("arms", "inputs") for name in added}
        others = [self._in_words(key, kept) for key in sorted(different)]
        if added and others == ["comparisons"]:
            raise ConfigError(
                f"{', '.join(added)} cannot be added to {path}: it was looked at, and its intervals share their error among "
                f"{kept['comparisons']} comparisons; begin another trial, and reserve more (comparisons: N) if arms may follow"
            )
        if others:
            free = next(each for number in itertools.count(2) if not (each := Path(f"{path}-{number}")).exists())
            raise ConfigError(
                f"{path} holds a trial that was looked at with other settings ({', '.join(others[:5])}); choose another folder "
                f"with --out, such as --out {shlex.quote(str(free))}: after a look only seeds, budget and arms for which "
                "comparisons were reserved may be added"
            )

    def _in_words(self, key: str, kept: dict[str, Any]) -> str:
        """What differs from the trial that was kept: a setting, or the content of a file."""
        part, _, rest = key.partition(".")
        name = rest.removesuffix(".settings")
        if part == "arms" and name in self.settings.arms and rest.endswith(".settings"):
            before, now = kept["arms"][name]["settings"], self.settings.arms[name].settings
            if [*map(setting_in_words, before)] == [*map(setting_in_words, now)]:
                return f"the code of {name}"
        return f"the content of {rest}" if part == "inputs" else key

    def _heed_last_look(self) -> None:
        """Refuse to end before the last look of the trial in the folder: the look would be chosen by what it says.

        A trial that kept going after its decision keeps the seeds of its last look. More seeds of a decided trial get a note,
        because they are trained only if it keeps going.
        """
        looked, result = 0, dict[str, Any]()
        with contextlib.suppress(ContextwiseError):  # none yet, or damaged: it is written again
            result = read_json(self.path / RESULT, "a trial's result", TrialResult)
            looked = result["seeds"]
        if looked > self.settings.seeds:
            raise ConfigError(
                f"the trial in {self.path} has an answer after {looked} seeds, which fewer cannot replace; "
                f"give --seeds {looked} or more"
            )
        over = looked and {each["arm"] for each in result["lengths"]} == self.settings.arms.keys()
        if (
            not over
            or any(each["decision"] == "undecided" for each in result["comparisons"])
            or self.settings.keep_going
        ):
            return
        if looked < self.settings.seeds:
            say(
                f"note: the trial in {self.path} is decided after {looked} seeds, so no further seed is trained; with "
                f"--keep-going, seeds are trained up to --seeds {self.settings.seeds}"
            )
        if result["stopped"] != "decided":
            self.settings = self.settings.model_copy(update={"keep_going": True, "seeds": looked})

    def _question(self) -> dict[str, Any]:
        """What a later call may not change: settings, and the content of all that the runs start from or are scored on."""
        return {**self.settings.question(), **self._content()}

    def _content(self) -> dict[str, Any]:
        """Content hashes of the documents, of the metadata that they are scored with, and of the inputs of each arm."""
        columns = self._measure().metadata_columns
        scored = {"metadata": texts_digest(self.arms.held_out, columns)} if columns else {}
        return {"corpora": self.arms.fingerprints, "scored": scored, "inputs": self.arms.inputs}

    def _kept_question(self) -> dict[str, Any]:
        """The question of the trial in the folder."""
        kept = self.folder.settings(TrialSettings)
        plan = self.folder.plan(PlanOfTrial)
        return {**kept.question(), **{name: plan[name] for name in ("corpora", "scored", "inputs")}}

    def write(self, step_seconds: dict[str, float]) -> None:
        """Write plan and settings."""
        values = self.settings.model_dump(mode="json", exclude={"output"})
        values["corpus"] = str(Path(values["corpus"]).absolute())
        plan = {"step_seconds": step_seconds, "near_copies": self.arms.documents.compared, **self._content()}
        self.folder.write(values, plan)

    @property
    def seconds(self) -> float:
        """Wall time of the trial so far."""
        return self._spent + time.monotonic() - self._started

    def _keep_time(self) -> None:
        write_json(self.path / SECONDS, {"seconds": round(self.seconds, 3)}, "the time")

    # ---- the plan ----

    def lengths(self) -> list[Length]:
        """The length of each arm's runs: those fixed at the start, else from steps that are timed now."""
        if (self.path / RESULT).exists() or self._plan_fits():
            step_seconds = self.folder.plan(PlanOfTrial)["step_seconds"]
            missing = [name for name in self.settings.arms if name not in step_seconds]
            if not missing:
                return self.arms.lengths(step_seconds)
            if self.settings.equal == "time":
                raise ConfigError(
                    f"the arm {missing[0]!r} cannot be added to a trial at equal time: the machine may have changed since the "
                    "others were timed; begin another trial"
                )
        if context := getattr(self._measure(), "context", None):
            self.arms.check_positions(context)
        self.arms.check_causality()
        rounds = TIMED_ROUNDS[self.settings.equal]
        say(f"timing a few steps of {listed(list(self.arms.recipes))}")
        if note := busy():
            say(f"note: {note}")
        return self.arms.lengths(seconds_per_step(self.arms.recipes, rounds, self.settings.executor.processes))

    def _plan_fits(self) -> bool:
        """Whether the folder has the plan of this question."""
        return self.folder.exists and not differing_keys(self._kept_question(), self._question())

    def plan(self) -> TrialPlan:
        """What the trial will cost and can decide; trains a few steps to time them, and writes nothing."""
        lengths, search, shares = self.lengths(), self.settings.rates, self.arms.search_shares
        jobs = min(self.settings.executor.jobs, len(lengths))
        # The documents are scored one run after another.
        seed_seconds = sum(length.own_share * length.seconds / jobs + length.scoring for length in lengths)
        shortest = self._shortest(lengths)
        runs = widening_runs = 0
        # A schedule that a run has no room for is refused here, before anything is written.
        self.arms.run_set(lengths, self.settings.first_seed, {})
        if search is not None:
            for share in shares:
                self.arms.search_runs(shortest, share, [SEARCH_SEED], search.factors[:1])
            runs = len(shares) * len(search.factors) * search.seeds * len(shortest)
            widened = len(shares) * (len(search.factors) > 1)
            widening_runs = 2 * widened * search.widenings * search.seeds * len(shortest)
        deviation, half, source = self._known_spread()
        plan = TrialPlan(
            lengths=lengths,
            parameters={name: run.parameters for name, run in self.arms.planned.items()},
            learning_rates={name: run.learning_rate for name, run in self.arms.planned.items()},
            margin=self.settings.margin,
            confidence=self.confidence,
            seeds=self.settings.seeds,
            search_runs=runs,
            seed_seconds=seed_seconds,
            widening_runs=widening_runs,
            search_seconds=0 if search is None else self._search_seconds(shortest, shares, len(search.factors)),
            search_flops=0
            if search is None
            else sum(shares) * search.seeds * len(search.factors) * sum(length.flops for length in shortest),
            budget=self.settings.budget,
            deviation=deviation,
            source=source,
            notes=self.arms.notes(lengths),
            documents=self.settings.documents,
            documents_half_width=half,
        )
        if plan.affordable_seeds < 2:
            needed = duration(plan.search_seconds + 2 * plan.seed_seconds)
            raise ConfigError(
                f"budget is {duration(self.settings.budget or 0)}, but the search and two seeds of all arms take about "
                f"{needed}; give more, shorter runs (--tokens), or --rates fixed"
            )
        return plan

    def _shortest(self, lengths: list[Length]) -> list[Length]:
        """The lengths at the smallest budget, at which the rates are searched."""
        return [length for length in lengths if length.budget == self.arms.budgets[0]]

    def _search_seconds(self, shortest: list[Length], shares: Sequence[float], factors: int) -> float:
        """Wall time of the search's runs of some lengths at so many factors, scoring included."""
        search = self.settings.rates
        assert search is not None
        jobs = min(self.settings.executor.jobs, len(shortest) * factors)
        each = sum(
            share * length.seconds / jobs + length.scoring / SEARCH_SHARE for length in shortest for share in shares
        )
        return factors * search.seeds * each

    def _known_spread(self) -> tuple[tuple[float, int] | None, float, str]:
        """The spread of paired differences by seed and over documents, and its source.

        The source is this trial, else the trials beside it that are most like it: with the same arms, then with models of the
        same sizes, then with the same budgets.
        """
        sizes = {name: run.parameters for name, run in self.arms.planned.items()}
        like: dict[tuple[bool, ...], list[tuple[str, list[list[float]], list[float]]]] = {}
        for file in sorted(self.path.parent.glob(f"*/{RESULT}")):
            with contextlib.suppress(ContextwiseError, KeyError):  # of a decision, or damaged
                result = read_json(file, "a trial's result", TrialResult)
                losses, base, groups = result["losses"], result["reference"], []
                halves = [each["documents_half_width"] or math.inf for each in result["comparisons"]]
                for arm, budgets in losses.items():
                    for at, values in budgets.items():
                        pairs = zip(values, losses[base][at], strict=False)
                        groups += [[a - b for a, b in pairs]] if arm != base else []
                same = losses.keys() == sizes.keys(), result["parameters"] == sizes
                same_budgets = {int(at) for at in losses[base]} == set(self.arms.budgets)
                own = file.parent.resolve() == self.path.resolve()
                like.setdefault((own, *same, same_budgets), []).append((file.parent.name, groups, halves))
        for likeness in sorted(like, reverse=True):
            own, same_arms, same_sizes, same_budgets = likeness
            names, groups, halves = ([*each] for each in zip(*like[likeness], strict=True))
            spread = within_groups([differences for each in groups for differences in each])
            if spread is None or spread.variance <= 0:
                continue
            more = [f"{len(names) - 3} more"] if len(names) > 4 else []
            differ = {
                "other arms": not same_arms,
                "models of other sizes": not same_sizes,
                "other tokens": not same_budgets,
            }
            unlike = next((f", with {what}" for what, differs in differ.items() if differs), "")
            beside = f"{listed([*names[:3], *more] if more else names)} beside this trial{unlike}"
            half = statistics.median(half for each in halves for half in each)
            return (math.sqrt(spread.variance), int(spread.freedom) + 1), half, "this trial" if own else beside
        return None, 0.0, ""

    # ---- running ----

    def run(self, on_look: Callable[[TrialResult], None] = lambda result: None) -> TrialResult:
        """Train seeds until all comparisons are decided; a trial that was stopped resumes.

        Args:
            on_look: called with the result after each look.

        Raises what :meth:`RunSet.train_missing` raises.
        """
        with interruption.listening(), contextlib.ExitStack() as stack:
            self._started = time.monotonic()
            plan = self.plan()  # before anything is written
            interruption.check("stopped before the first run; run the same command again")
            before = time.monotonic()
            stack.enter_context(exclusive(self.path, "the trial in", wait=True))
            self._started += time.monotonic() - before  # another process's time is in its seconds
            self._refuse_other()
            self._heed_last_look()
            if self._plan_fits():
                plan = self.plan()  # that of another process that has begun the trial meanwhile
            if (self.path / SECONDS).exists():
                self._spent = read_json(self.path / SECONDS, "the time that the trial has taken", Spent)["seconds"]
            per_step = {
                each.arm: each.seconds / each.tokens * self.arms.recipes[each.arm].tokens_per_step
                for each in plan.lengths
            }
            self.write(per_step)
            try:
                return self._run(plan, on_look)
            finally:
                self._keep_time()

    def _run(self, plan: TrialPlan, on_look: Callable[[TrialResult], None]) -> TrialResult:
        settings, lengths = self.settings, plan.lengths
        self._search(lengths, 2 * plan.seed_seconds)
        longest = plan.seed_seconds
        for number in range(settings.seeds):
            interruption.check("stopped; the finished runs are kept; run the same command again to resume")
            started = time.monotonic()
            over = settings.budget is not None and self.seconds + longest > settings.budget
            if over and number >= 2 and not self._finished(lengths, number):
                return self._report(self._result(lengths, number, "budget"), on_look)
            self._seed(lengths, number)
            longest = max(longest, time.monotonic() - started)
            self._keep_time()
            result = self._result(lengths, number + 1, "")
            if not result.comparisons:
                raise TrainingError(f"{'; '.join(self._diverged.values())}; no arm is left to compare. {LOWER_RATE}")
            undecided = {each.arm for each in result.comparisons if each.decision == "undecided"}
            left = self.settings.others if settings.keep_going else undecided
            if not set(left) - self._diverged.keys():
                return self._report(replace(result, stopped="diverged" if undecided else "decided"), on_look)
            last = number + 1 == settings.seeds
            if not last and not self._finished(lengths, number + 1):  # else a trial that resumes has been here
                self._report(result, on_look)
        return self._report(self._result(lengths, settings.seeds, "seeds"), on_look)

    def _report(self, result: TrialResult, on_look: Callable[[TrialResult], None]) -> TrialResult:
        """Write a result, then hand it to ``on_look``."""
        write_json(self.path / RESULT, as_json(result), "the trial's result")
        on_look(result)
        return result

    def _open_arms(self, lengths: list[Length], seeds: int) -> list[str]:
        """The arms that need another seed after so many: the reference, and those that are not decided at every budget."""
        if self.settings.keep_going or seeds == 0:
            return [name for name in self.settings.arms if name not in self._diverged]
        comparisons = self._comparisons(lengths, seeds)
        arms = {each.arm for each in comparisons if each.decision == "undecided"} - self._diverged.keys()
        return [name for name in self.settings.arms if name in arms or name == self.settings.baseline]

    def _run_set(self, lengths: list[Length], number: int) -> tuple[list[Length], RunSet]:
        """The runs of a seed: the open arms, in turning order."""
        arms = self._open_arms(lengths, number)
        turn = number % len(arms)
        order = {arm: place for place, arm in enumerate(arms[turn:] + arms[:turn])}
        chosen = sorted((each for each in lengths if each.arm in order), key=lambda each: order[each.arm])
        return chosen, self.arms.run_set(chosen, self.settings.first_seed + number, self.factors)

    def _finished(self, lengths: list[Length], number: int) -> bool:
        _, runs = self._run_set(lengths, number)
        return all(run.finished or run.diverged for run in map(RunFolder, runs.paths))

    def _train(self, runs: RunSet) -> None:
        """Train the runs that have not finished, and may diverge; raises what :meth:`RunSet.train_missing` raises."""
        runs.refuse_changed()
        if not all(RunFolder(path).finished for path in runs.paths):
            runs.train_missing(self.settings.executor.processes, may_diverge=True)

    def _seed(self, lengths: list[Length], number: int) -> None:
        """Train the runs of a seed, and score the held-out documents."""
        chosen, runs = self._run_set(lengths, number)
        documents = self.arms.documents
        self._train(runs)
        if not all(run.finished or run.diverged for run in map(RunFolder, runs.paths)):  # without a trunk that diverged
            chosen, runs = self._run_set(lengths, number)
            self._train(runs)
        of_name = {run.arm: run for run in runs.runs}
        for length in chosen:
            run, seed = of_name[self.arms.run_name(length)], self.settings.first_seed + number
            if (folder := RunFolder(run.folder)).diverged:
                reason = read_json(folder.divergence_file, "the reason")["reason"]
                self._note_divergence(length.arm, run.folder, seed, reason)
                continue
            try:
                scored = self._scored(run.folder, documents.count)
            except NotFiniteError as error:  # its last step, or one before it, was too long
                self._note_divergence(length.arm, run.folder, seed, str(error))
                continue
            nats, tokens = total_nats(scored)
            self._remark = self._measure().remark(scored.summary)
            self._nats[length.arm, length.budget, number] = nats[documents.decided]
            self._seconds[length.arm, length.budget, number] = RunFolder(run.folder).summary()["seconds"]
            self._tokens_N = tokens[documents.decided]

    def _note_divergence(self, arm: str, folder: Path, seed: int, reason: str) -> None:
        """Remember that an arm diverged; a TrainingError if it is the reference."""
        found = f"{arm} diverged with seed {seed} ({folder}): {reason}"
        if arm == self.settings.baseline:
            raise TrainingError(f"{found}; it is the reference of all comparisons. {LOWER_RATE}")
        self._diverged.setdefault(arm, found)

    def _scored(self, folder: Path, documents: int) -> Any:
        """The evaluation of a run on the first held-out documents."""
        from contextwise.evaluation.kernel import measure

        limit = None if documents == len(self.arms.held_out) else documents
        return measure(folder, self._measure(limit), self.arms.held_out)

    def _measure(self, limit: int | None = None) -> Any:
        """How the runs are scored, on the first documents."""
        from contextwise.comparison.compared_runs import measures_of_loss
        from contextwise.evaluation.kernel import measures
        from contextwise.evaluation.measures.loss import Loss

        values = {"measure": Loss.name, "limit": limit, **self.settings.score}
        if (name := values.pop("measure")) not in (known := measures_of_loss()):
            raise ConfigError(f"score.measure is {name!r}, but must be one of {', '.join(known)}")
        return validate(measures()[name], values, "the trial's score")

    def _comparisons(self, lengths: list[Length], seeds: int) -> list[Comparison]:
        """Every comparison after a number of seeds."""
        base, result = self.settings.baseline, []
        for budget in dict.fromkeys(each.budget for each in lengths):
            for arm in self.settings.others:
                pairs = [
                    (self._nats[arm, budget, number], self._nats[base, budget, number])
                    for number in range(seeds)
                    if (arm, budget, number) in self._nats
                ]
                if not pairs:
                    continue
                differences_SN = np.stack([a - b for a, b in pairs])
                path = looks(differences_SN, self._tokens_N, self.confidence)
                half = document_half_width(differences_SN, self._tokens_N, self.confidence)
                common = (self.settings.margin, self.settings.documents, path, half)
                result.append(Comparison(arm, base, budget, *common))
        return result

    def _along_budgets(self, lengths: list[Length], seeds: int) -> list[AlongBudgets]:
        """How each arm's difference moves along the budgets, and the compute that it is worth; none for one budget."""
        base, budgets, tokens = self.settings.baseline, self.arms.budgets, self._tokens_N.sum()
        compute = {
            (each.arm, each.budget): each.seconds if self.settings.equal == "time" else each.flops for each in lengths
        }
        result = []
        for arm in self.settings.others if len(budgets) > 1 else []:
            numbers = [
                number
                for number in range(seeds)
                if all((name, budget, number) in self._nats for name in (arm, base) for budget in budgets)
            ]
            own_SB, reference_SB = (
                np.array([[self._nats[name, budget, number].sum() for budget in budgets] for number in numbers])
                / tokens
                for name in (arm, base)
            )
            if not numbers:
                continue
            along = trend(own_SB - reference_SB, np.array(budgets), self.settings.confidence)
            reference_compute = np.array([compute[base, budget] for budget in budgets])
            speedups = {
                budget: effective_speedup(
                    own_SB[:, place], compute[arm, budget], reference_SB, reference_compute, self.settings.confidence
                )
                for place, budget in enumerate(budgets)
            }
            result.append(AlongBudgets(arm, base, self.settings.equal, along, speedups))
        return result

    def _result(self, lengths: list[Length], seeds: int, stopped: str) -> TrialResult:
        settings, tokens = self.settings, float(self._tokens_N.sum())
        losses = self._by_arm({at: float(nats.sum() / tokens) for at, nats in self._nats.items()}, seeds)
        times = self._by_arm(self._seconds, seeds)
        return TrialResult(
            trial=settings.name,
            stopped=stopped,
            reference=settings.baseline,
            equal=settings.equal,
            margin=settings.margin,
            confidence=settings.confidence,
            documents=settings.documents,
            held_out=self.arms.documents.to_dict(int(tokens)),
            comparisons=self._comparisons(lengths, seeds),
            along_budgets=self._along_budgets(lengths, seeds),
            lengths=lengths,
            parameters={name: run.parameters for name, run in self.arms.planned.items()},
            losses=losses,
            training_seconds=times,
            rates=self.rates,
            chosen_rates=self.chosen_rates,
            seconds=round(self.seconds, 1),
            unchanged=held_fixed(self.arms),
            notes=[
                *self.arms.notes(lengths),
                *([f"All arms are {self._remark}"] if self._remark else []),
                *(
                    f"{found}. No further seed of it is trained, and its comparison is about the seeds that did not diverge. "
                    f"{LOWER_RATE}"
                    for found in self._diverged.values()
                ),
                *self._doubtful_rates(),
                *self._unequal_times(times),
            ],
            path=self.path,
        )

    def _by_arm(self, values: dict[tuple[str, int, int], float], seeds: int) -> dict[str, dict[int, list[float]]]:
        """Values by arm and budget, seed by seed."""
        result: dict[str, dict[int, list[float]]] = {}
        for arm in self.settings.arms:
            for budget in self.arms.budgets:
                mine = [values[arm, budget, number] for number in range(seeds) if (arm, budget, number) in values]
                if mine:
                    result.setdefault(arm, {})[budget] = mine
        return result

    def _unequal_times(self, times: dict[str, dict[int, list[float]]]) -> list[str]:
        """A note for each arm whose runs took another time than planned, where time is what is equal."""
        base, notes = self.settings.baseline, []
        for arm in self.settings.others if self.settings.equal == "time" else []:
            for budget, mine in times.get(arm, {}).items():
                ratio = statistics.median(a / b for a, b in zip(mine, times[base][budget], strict=False))
                if abs(ratio - 1) > UNEQUAL_TIME:
                    notes.append(
                        f"The runs of {arm} at {count(budget)} tokens took {ratio:.2f} times those of {base}, although "
                        "steps were timed in alternation: something else was running, or the first steps are not like the rest."
                    )
        return notes

    def _doubtful_rates(self) -> list[str]:
        """Notes: which arms' best rates are at an edge of the search, and which lead another rate by less than the margin."""
        margin = self.settings.margin
        edges = [each.arm for each in self.chosen_rates if each.at_edge]
        leads = {each.arm: each.lead for each in self.chosen_rates}
        ties = [f"{arm} ({lead:.4f})" for arm, lead in leads.items() if lead is not None and lead < margin]
        notes = []
        for each in self.chosen_rates:
            rows = [row for row in self.rates if (row.arm, row.steps) == (each.arm, each.optima[-1].steps)]
            losses = {row.factor: math.inf if row.loss is None else row.loss for row in rows}
            if minima := other_minima(losses, margin):
                lowest, others = f"{each.optima[-1].factor:.3g}", listed([f"{factor:.3g}" for factor in minima])
                notes.append(
                    f"The loss of {each.arm} has two minima in the search, at {lowest} (the lowest) and {others} "
                    "× the recipe's rate: between them it is higher by more than the margin. More seeds (rates.seeds=3) show "
                    "whether that is chance."
                )
        if edges:
            notes.append(
                f"The best learning rate of {listed(edges)} is at an edge of the search, so a better one may exist. Give other "
                "factors (rates.factors)."
            )
        if ties:
            notes.append(
                "In the search the loss at the best learning rate is lower than at a neighbouring rate by less than the margin "
                f"for {listed(ties)}. In full-length runs the neighbour may be better, and by much more: search with "
                "rates.shares=[1] (full-length runs) or rates.seeds=3 to find out."
            )
        return notes

    # ---- learning rates ----

    def _search(self, lengths: list[Length], reserve: float = 0.0) -> None:
        """Choose the factor of each arm's rates; at a length all arms get the same factors, more where one is at an edge.

        Args:
            reserve: wall time in seconds that a widening must leave of the budget.
        """
        search = self.settings.rates
        if search is None:
            return
        shortest, shares = self._shortest(lengths), self.arms.search_shares
        losses: dict[float, dict[tuple[str, float], float]] = {}
        for place in reversed(range(len(shares))):
            others = self._search_seconds(shortest, shares[:place], len(search.factors))
            losses[shares[place]] = self._search_at(shares[place], shortest, reserve + others)
        self.rates, self.chosen_rates = [], []
        for length in shortest:
            by_steps = []
            for share in shares:
                steps = self.arms.search_steps(length, share)
                mine = {factor: loss for (arm, factor), loss in losses[share].items() if arm == length.arm}
                by_steps.append((steps, mine))
                self.rates += self._rows(length.arm, steps, mine)
            self.chosen_rates.append(ChosenRate.of(length.arm, length.steps, by_steps, self.settings.margin))
        self.factors = {each.arm: each.factor for each in self.chosen_rates}

    def _rows(self, arm: str, steps: int, losses: dict[float, float]) -> list[RateRow]:
        """An arm's short runs of one length, by rate."""
        rate, best = self.arms.recipes[arm].learning_rate, best_factor(losses)
        return [
            RateRow(arm, steps, factor, rate * factor, loss if math.isfinite(loss) else None, factor == best)
            for factor, loss in sorted(losses.items())
        ]

    def _search_at(self, share: float, shortest: list[Length], reserve: float) -> dict[tuple[str, float], float]:
        """The losses of the short runs of one length: (arm, factor) -> loss, with the factors that were added."""
        search = self.settings.rates
        assert search is not None
        factors, losses = list(search.factors), dict[tuple[str, float], float]()
        for widening in range(search.widenings + 1):
            self._train_rates(shortest, share, factors, losses)
            best = {_lowest(losses, each.arm, factors) for each in shortest}
            edges = [(factors[0], factors[1]), (factors[-1], factors[-2])] if len(factors) > 1 else []
            wanted = [edge * edge / inner for edge, inner in edges if edge in best]
            further = [] if widening == search.widenings else self._further(shortest, share, wanted, reserve)
            if not further:
                break
            factors = sorted([*factors, *further])
        return losses

    def _further(self, shortest: list[Length], share: float, wanted: list[float], reserve: float) -> list[float]:
        """The factors with which the reference was trained before; before the first look all, if the budget has room."""
        base = [length for length in shortest if length.arm == self.settings.baseline]

        def known(factor: float) -> bool:
            paths = (path for each in self._search_runs(base, share, [factor]).values() for path in each.paths)
            return all(run.finished or run.diverged for run in map(RunFolder, paths))

        before = list(filter(known, wanted))
        if len(before) == len(wanted) or (self.path / RESULT).exists():
            return before
        needed = self._search_seconds(shortest, [share], len(wanted) - len(before)) + reserve
        return wanted if self.settings.budget is None or self.seconds + needed <= self.settings.budget else before

    def _search_runs(
        self, lengths: list[Length], share: float, factors: list[float]
    ) -> dict[tuple[str, float, int], RunSet]:
        search = self.settings.rates
        assert search is not None
        seeds = [SEARCH_SEED + number for number in range(search.seeds)]
        return self.arms.search_runs(lengths, share, seeds, factors)

    def _train_rates(
        self, lengths: list[Length], share: float, factors: list[float], losses: dict[tuple[str, float], float]
    ) -> None:
        """Train the short runs of one length at the factors that have no loss yet, and add their losses."""
        missing = [factor for factor in factors if (lengths[0].arm, factor) not in losses]
        runs = self._search_runs(lengths, share, missing)
        together = RunSet(self.path, [run for each in runs.values() for run in each.runs])
        self._train(together)  # a rate at which training diverges is no choice
        self._keep_time()
        sums: dict[tuple[str, float], list[float]] = {}
        for (arm, factor, _), run_set in runs.items():
            loss, folder = math.inf, run_set.runs[0].folder
            if RunFolder(folder).finished:
                searched = self.arms.documents.searched
                with contextlib.suppress(NotFiniteError):
                    nats, tokens = total_nats(self._scored(folder, int(searched[-1]) + 1))
                    loss = float(nats[searched].sum() / tokens[searched].sum())
            sums.setdefault((arm, factor), []).append(loss)
        losses |= {key: float(np.mean(values)) for key, values in sums.items()}
        for length in lengths:
            if not any(math.isfinite(losses[length.arm, factor]) for factor in factors):
                raise TrainingError(f"{length.arm} diverges at every learning rate that was tried; give lower ones")


def _lowest(losses: dict[tuple[str, float], float], arm: str, factors: list[float]) -> float:
    return best_factor({factor: losses[arm, factor] for factor in factors})
