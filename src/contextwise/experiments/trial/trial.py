"""A trial: seeds of all arms, one after another, until every comparison with the reference is decided.

1. Check that the arms can be compared; time a few steps of each in alternation; fix the length of each arm's runs.
2. Search each arm's learning rates, on documents and seeds that no decision uses.
3. For each seed: train all open arms on the same windows in the same order, from the same values of the tensors that they
   share; score the held-out documents; look at the intervals; stop when all comparisons are decided.

The folder holds ``trial.yaml`` (settings) · ``plan.json`` (times of a step, and hashes of all inputs) · ``runs/`` ·
``result.json`` (after each look). Everything but the plan is computed from the finished runs, so a trial that was killed at
any instant resumes, and more seeds continue the same sequence.
"""

import contextlib
import itertools
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import ConfigError, ContextwiseError, NotFiniteError, TrainingError, check_alone
from contextwise.base.estimates import as_json, count, listed
from contextwise.base.files import exclusive, read_sealed_json, write_sealed_json
from contextwise.base.progress import interruption, say
from contextwise.base.runs import RunFolder, differing_keys
from contextwise.base.schemas import built
from contextwise.comparison.compared_runs import note_on_precisions
from contextwise.comparison.decided import RESULT, Comparison
from contextwise.comparison.sequential import document_half_width, looks, simultaneous
from contextwise.comparison.speedup import effective_speedup, trend
from contextwise.experiments.folder import PlannedRun, Question
from contextwise.experiments.run_set import RunSet
from contextwise.experiments.trial.arms import Arms, Length, held_fixed, total_nats
from contextwise.experiments.trial.result import AlongBudgets, TrialPlan, TrialResult
from contextwise.experiments.trial.search import SEARCH_SEED, ChosenRate, RateRow, Search, doubtful_rates
from contextwise.experiments.trial.settings import TrialSettings, setting_in_words

COMPUTE = {"time": "the training time of ", "flops": "the FLOPs of ", "tokens": ""}
TIMED_ROUNDS = {"time": 5, "flops": 2, "tokens": 2}
LOWER_RATE = "For another answer begin another trial (--out), with a lower rate or a lower training.clip for all arms."


class Trial:
    """A planned or existing trial. The constructor trains and writes nothing."""

    def __init__(self, settings: TrialSettings) -> None:
        if settings.first_seed + settings.seeds > SEARCH_SEED:
            raise ConfigError(f"first_seed is {settings.first_seed}, but the seeds must be below {SEARCH_SEED}")
        self.settings, self.path = settings, settings.folder
        self.folder = Question(self.path, "trial")
        self.arms = Arms(settings)
        # Of each interval, so that all hold together with the trial's.
        self.confidence = simultaneous(settings.confidence, len(settings.others) * len(self.arms.budgets))
        self._refuse_other()
        if self._plan_fits() and (costs := self.folder.plan().get("costs")):  # torch takes seconds to find them again
            self.arms.planned = {name: built(PlannedRun, values) for name, values in costs.items()}
        self.factors: dict[str, float] = {}
        self.rates: list[RateRow] = []
        self.chosen_rates: list[ChosenRate] = []
        self._nats: dict[tuple[str, int, int], np.ndarray] = {}
        self._diverged: dict[str, str] = {}  # arm -> its first run whose loss was not finite, in words
        self._seconds: dict[tuple[str, int, int], float] = {}
        self._precisions: dict[str, set[str]] = {}
        self._tokens_N = np.zeros(0)
        self._remark = ""  # on how the runs were scored

    # ---- the folder ----

    def _refuse_other(self) -> None:
        """Refuse a folder with other files, or with a trial of another question that was looked at."""
        path = self.path
        if not self.folder.exists or not (path / RESULT).exists():
            return
        kept, new = self._kept_question(), self._question()
        different = differing_keys(kept, new)
        others = [self._in_words(key, kept) for key in sorted(different)]
        if others:
            free = next(each for number in itertools.count(2) if not (each := Path(f"{path}-{number}")).exists())
            raise ConfigError(
                f"{path} holds a trial that was looked at with other settings ({', '.join(others[:5])}); choose another folder "
                f"with --out, such as --out {shlex.quote(str(free))}: after a look only the number of seeds may change"
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
        """Refuse to end before the last look of the trial in the folder: the look would be chosen by what it says."""
        looked = 0
        with contextlib.suppress(ContextwiseError):  # none yet, or damaged: it is written again
            looked = read_sealed_json(self.path / RESULT, "a trial's result")["seeds"]
        if looked > self.settings.seeds:
            raise ConfigError(
                f"the trial in {self.path} has an answer after {looked} seeds, which fewer cannot replace; "
                f"give --seeds {looked} or more"
            )

    def _question(self) -> dict[str, Any]:
        """What a later call may not change: settings, and the content of all that the runs start from or are scored on."""
        return {**self.settings.question(), **self._content()}

    def _content(self) -> dict[str, Any]:
        """Content hashes of the documents, of the metadata that they are scored with, and of the inputs of each arm."""
        columns = self.settings.measure().metadata_columns
        scored = {"metadata": self.arms.held_out.metadata_digest(columns)} if columns else {}
        return {"corpora": self.arms.fingerprints, "scored": scored, "inputs": self.arms.inputs}

    def _kept_question(self) -> dict[str, Any]:
        """The question of the trial in the folder."""
        kept = self.folder.settings(TrialSettings)
        plan = self.folder.plan()
        return {**kept.question(), **{name: plan[name] for name in ("corpora", "scored", "inputs")}}

    def write(self, step_seconds: dict[str, float]) -> None:
        """Write plan and settings."""
        values = self.settings.model_dump(mode="json", exclude={"output"})
        values["corpus"] = str(Path(values["corpus"]).absolute())
        plan = {"step_seconds": step_seconds, "near_copies": self.arms.documents.compared, **self._content()}
        plan["costs"] = {name: asdict(run) for name, run in self.arms.planned.items()}
        self.folder.write(values, plan)

    # ---- the plan ----

    def lengths(self) -> list[Length]:
        """The length of each arm's runs: those fixed at the start, else from steps that are timed now."""
        if self._plan_fits():
            return self.arms.lengths(self.folder.plan()["step_seconds"])
        from contextwise.experiments.cost import seconds_per_step

        if context := getattr(self.settings.measure(), "context", None):
            self.arms.check_positions(context)
        self.arms.check_causality()
        rounds = TIMED_ROUNDS[self.settings.equal]
        say(f"timing a few steps of {listed(list(self.arms.recipes))}")
        return self.arms.lengths(seconds_per_step(self.arms.recipes, rounds, self.settings.executor))

    def _plan_fits(self) -> bool:
        """Whether the folder has the plan of this question."""
        return self.folder.exists and not differing_keys(self._kept_question(), self._question())

    def plan(self) -> TrialPlan:
        """What the trial will cost; trains a few steps to time them, and writes nothing."""
        lengths = self.lengths()
        search = Search(self.arms, lengths)
        jobs = min(self.settings.executor.jobs, len(lengths))
        # The documents are scored one run after another.
        seed_seconds = sum(length.seconds / jobs + length.scoring for length in lengths)
        # A schedule that a run has no room for is refused here, before anything is written.
        self.arms.run_set(lengths, self.settings.first_seed, {})
        search.short_runs(search.lengths, search.settings.factors[:1])
        parameters = {name: run.parameters for name, run in self.arms.planned.items()}
        return TrialPlan(
            lengths=lengths,
            parameters=parameters,
            learning_rates={name: run.learning_rate for name, run in self.arms.planned.items()},
            confidence=self.confidence,
            seeds=self.settings.seeds,
            search_runs=search.runs,
            seed_seconds=seed_seconds,
            widening_runs=search.widening_runs,
            search_seconds=search.seconds(len(search.settings.factors)),
            search_flops=search.flops,
            notes=self.arms.notes(lengths),
        )

    # ---- running ----

    def run(self, on_look: Callable[[TrialResult], None] = lambda result: None) -> TrialResult:
        """Train seeds until all comparisons are decided; a trial that was stopped resumes. ``on_look`` gets each result."""
        check_alone("a trial")
        with interruption.listening(), contextlib.ExitStack() as stack:
            plan = self.plan()  # before anything is written
            interruption.check("stopped before the first run; run the same command again")
            stack.enter_context(exclusive(self.path, "the trial", wait=True))
            self._refuse_other()
            self._heed_last_look()
            if self._plan_fits():
                plan = self.plan()  # that of another process that has begun the trial meanwhile
            per_step = {
                each.arm: each.seconds / each.tokens * self.arms.recipes[each.arm].tokens_per_step
                for each in plan.lengths
            }
            self.write(per_step)
            return self._run(plan.lengths, on_look)

    def _search(self, lengths: list[Length]) -> None:
        """Choose the factor of each arm's rates."""
        self.rates, self.chosen_rates = Search(self.arms, lengths).run()
        self.factors = {each.arm: each.factor for each in self.chosen_rates}

    def _run(self, lengths: list[Length], on_look: Callable[[TrialResult], None]) -> TrialResult:
        settings = self.settings
        self._search(lengths)
        for number in range(settings.seeds):
            interruption.check("stopped; the finished runs are kept; run the same command again to resume")
            self._seed(lengths, number)
            result = self._result(lengths, number + 1, "")
            if not result.comparisons:
                raise TrainingError(f"{'; '.join(self._diverged.values())}; no arm is left to compare. {LOWER_RATE}")
            undecided = {each.arm for each in result.comparisons if each.decision == "undecided"}
            if not undecided - self._diverged.keys():
                return self._report(replace(result, stopped="diverged" if undecided else "decided"), on_look)
            last = number + 1 == settings.seeds
            if not last and not self._finished(lengths, number + 1):  # else a trial that resumes has been here
                self._report(result, on_look)
        return self._report(self._result(lengths, settings.seeds, "seeds"), on_look)

    def _report(self, result: TrialResult, on_look: Callable[[TrialResult], None]) -> TrialResult:
        """Write a result, then hand it to ``on_look``."""
        write_sealed_json(self.path / RESULT, as_json(result), "the trial's result")
        on_look(result)
        return result

    def _open_arms(self, lengths: list[Length], seeds: int) -> list[str]:
        """The arms that need another seed after so many: the reference, and those that are not decided at every budget."""
        if seeds == 0:
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

    def _seed(self, lengths: list[Length], number: int) -> None:
        """Train the runs of a seed, and score the held-out documents."""
        chosen, runs = self._run_set(lengths, number)
        documents = self.arms.documents
        runs.train_missing(self.settings.executor, may_diverge=True)
        of_name = {run.arm: run for run in runs.runs}
        for length in chosen:
            run, seed = of_name[self.arms.run_name(length)], self.settings.first_seed + number
            if (folder := RunFolder(run.folder)).diverged:
                reason = read_sealed_json(folder.divergence_file, "the reason")["reason"]
                self._note_divergence(length.arm, run.folder, seed, reason)
                continue
            try:
                scored = documents.evaluation(run.folder, documents.count)
            except NotFiniteError as error:  # its last step, or one before it, was too long
                self._note_divergence(length.arm, run.folder, seed, str(error))
                continue
            nats, tokens = total_nats(scored)
            self._remark = self.settings.measure().remark(scored.summary)
            self._nats[length.arm, length.budget, number] = nats[documents.decided]
            summary = folder.summary()
            self._seconds[length.arm, length.budget, number] = summary["seconds"]
            self._precisions.setdefault(length.arm, set()).add(summary["precision"])
            self._tokens_N = tokens[documents.decided]

    def _note_divergence(self, arm: str, folder: Path, seed: int, reason: str) -> None:
        """Remember that an arm diverged; a TrainingError if it is the reference."""
        found = f"{arm} diverged with seed {seed} ({folder}): {reason}"
        if arm == self.settings.baseline:
            raise TrainingError(f"{found}; it is the reference of all comparisons. {LOWER_RATE}")
        self._diverged.setdefault(arm, found)

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
                compute = f"{COMPUTE[self.settings.equal]}{count(budget)} tokens"
                result.append(Comparison(arm, base, budget, *common, compute=compute))
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
            unchanged=held_fixed(self.arms),
            notes=[
                *self.arms.notes(lengths),
                *([f"All arms are {self._remark}"] if self._remark else []),
                *(
                    f"{found}. No further seed of it is trained, and its comparison is about the seeds that did not diverge. "
                    f"{LOWER_RATE}"
                    for found in self._diverged.values()
                ),
                *note_on_precisions(self._precisions),
                *doubtful_rates(self.chosen_rates, settings.margin),
            ],
            path=self.path.absolute(),
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
