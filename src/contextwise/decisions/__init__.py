"""Decide from the losses of runs of any training script: paired by seed and document, as a trial decides.

The interval over seeds holds after all of them at once (:mod:`contextwise.comparison.sequential`), so the runs may be looked
at after every seed. A decision with a folder keeps what was looked at: later calls may add seeds, and change nothing else.
"""

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from contextwise.base.config import plain_number
from contextwise.base.errors import ConfigError, DataError, Problem, did_you_mean, with_hints
from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, NOT_IN_JSON, Documents, as_json, counted, listed
from contextwise.base.files import exclusive, expanded, read_sealed_json, write_sealed_json
from contextwise.comparison.decided import RESULT, Comparison, Decided
from contextwise.comparison.sequential import decide as decided_by
from contextwise.comparison.sequential import document_half_width, looks, simultaneous
from contextwise.decisions.rows import Losses, read_losses

LOOKED = "looked.json"
MARGIN = 0.01
LARGEST_MARGIN = 1000.0
SEEDS_ALONE = "by the means of the runs"


@dataclass(frozen=True, repr=False, kw_only=True)
class Decision(Decided):
    """Every arm against the reference; ``losses``: arm -> seed -> loss."""

    decision: str  # its name
    unit: str  # of the losses: nats per token or byte, errors per question, or loss
    losses: dict[str, dict[int, float]]
    path: Path | None = field(default=None, metadata=NOT_IN_JSON)

    IN_JSON: ClassVar = ("sentences",)

    @property
    def answer(self) -> str:
        """The first comparison with its interval, and how many there are."""
        return f"{self.decision}: {self.in_short}"

    @property
    def sentences(self) -> list[str]:
        """The decision of each comparison."""
        return [each.sentence for each in self.comparisons]


@with_hints
def decide(
    losses: Any,
    reference: str | None = None,
    *,
    margin: float = MARGIN,
    confidence: float = CONFIDENCE,
    documents: Documents = "fixed",
    out: str | Path | None = None,
) -> Decision:
    """Decide whether each arm is better than the reference, worse, or equivalent within the margin.

    Args:
        losses: rows of documents (:mod:`contextwise.decisions.rows`): a data frame, an Arrow table, a mapping of columns, or
            files and folders of them; or :class:`~contextwise.decisions.rows.Losses`.
        reference: the arm that the others are compared to; by default the first.
        margin: the smallest difference that matters, in the unit of the losses.
        confidence: of the intervals of all comparisons together.
        documents: decide about these held-out documents (fixed) or any like them (random).
        out: folder of the result and of the list of runs that were looked at.

    Raises:
        ConfigError: a value is out of range, there is no such arm, or the folder holds another decision.
        DataError: the rows cannot be read or paired.
    """
    if not isinstance(losses, Losses):
        losses = read_losses(losses)
    arms = losses.arms
    reference = reference_of(losses, reference)
    others = [arm for arm in arms if arm != reference]
    if not others:
        raise ConfigError(f"{reference} is the only arm, so there is nothing to decide; give the losses of another")
    margin, confidence = plain_number("margin", margin), plain_number("confidence", confidence)
    check(margin, confidence, documents)
    if not losses.documents and documents == "random":
        raise ConfigError(
            "documents is random, but these losses are means of whole runs; leave it out, or give documents"
        )
    folder = None if out is None else expanded(out)
    if folder is not None and not Path(os.path.realpath(folder)).name:
        raise ConfigError(f"{folder} cannot hold a decision; choose a folder with a name with --out")
    # The looks of another process count in this one, so none may come in between.
    with contextlib.nullcontext() if folder is None else exclusive(folder, "the decision", wait=True):
        looked, counts = _looked(folder)
        notes, each = list(losses.notes), simultaneous(confidence, len(others))
        if 0 < (held_out := len(losses.documents)) < FEWEST_DOCUMENTS:
            notes.append(
                f"{counted(held_out, 'document')} cannot show how far documents differ; {FEWEST_DOCUMENTS} or more give "
                "an interval for any such documents."
            )
        found = [
            _compared(losses, arm, reference, margin, each, documents, notes, looked, counts.get(arm, []))
            for arm in others
        ]
        total = losses.sizes.sum()
        decision = Decision(
            decision=default_name(losses, reference) if folder is None else Path(os.path.realpath(folder)).name,
            reference=reference,
            unit=losses.unit,
            margin=margin,
            confidence=confidence,
            documents=documents,
            comparisons=found,
            losses={
                arm: {seed: float(losses.values[arm, seed].sum() / total) for seed in losses.seeds(arm)} for arm in arms
            },
            held_out={"documents": held_out, "tokens": int(total) if losses.documents else 0},
            notes=[*notes, *_notes(losses, found)],
            path=folder,
        )
        if folder is not None:
            _keep(decision, folder, losses, looked, counts)
    return decision


def _notes(losses: Losses, found: list[Comparison]) -> list[str]:
    """What is to be noted of runs that are the same, and of looks after the one that decided."""
    notes = []
    for arm in losses.arms:
        nats_SN = np.stack([losses.values[arm, seed] for seed in losses.seeds(arm)])
        if len(nats_SN) > 1 and not np.ptp(nats_SN, axis=0).any():
            notes.append(f"All {len(nats_SN)} seeds of {arm} have the same losses, as if they were one run.")
    notes += [
        f"{each.arm} has the losses of {each.reference} with every seed, as if they were the same runs."
        for each in found
        if each.last.seeds > 1 and _same_losses(losses, each.arm, each.reference)
    ]
    return notes + [
        f"The decision on {each.arm} was made after {each.decided_after} of {len(each.looks)} seeds, and stands. With all of "
        f"them{_alone(each)}: {each.last.of(each.documents):+.4f}."
        for each in found
        if each.decided_after and each.decided_after < len(each.looks)
    ]


def _same_losses(losses: Losses, arm: str, reference: str) -> bool:
    """Whether two arms have the same loss on each document with each seed that both have."""
    seeds = set(losses.seeds(arm)) & set(losses.seeds(reference))
    return all(np.array_equal(losses.values[arm, seed], losses.values[reference, seed]) for seed in seeds)


def is_newest(decision: Decision) -> bool:
    """Whether no other process has looked again since this decision was written to its folder."""
    assert decision.path is not None
    return read_sealed_json(decision.path / RESULT, "the decision") == json.loads(json.dumps(as_json(decision)))


def _alone(comparison: Comparison) -> str:
    """A clause where the newest look would decide otherwise than the one that decided."""
    alone = decided_by(comparison.last.of(comparison.documents), comparison.margin)
    if alone == comparison.decision:
        return ""
    return ", which by themselves decide nothing" if alone == "undecided" else f", which by themselves would be {alone}"


def check(margin: float, confidence: float, documents: str) -> None:
    """Refuse settings out of range."""
    if not 0 < margin <= LARGEST_MARGIN:
        raise ConfigError(Problem(f"but must be above 0 and at most {LARGEST_MARGIN:g}", "margin", margin))
    if not 0.5 <= confidence <= 0.9999:
        raise ConfigError(Problem("but must be from 0.5 to 0.9999", "confidence", confidence))
    if documents not in get_args(Documents):
        raise ConfigError(Problem(f"but must be {' or '.join(get_args(Documents))}", "documents", documents))


def reference_of(losses: Losses, reference: str | None) -> str:
    """The arm that the others are compared to: the given one, or the first."""
    if reference is not None and reference not in losses.arms:
        hint = did_you_mean(reference, losses.arms, "give one of them")
        raise ConfigError(f"the reference is {reference!r}, but the arms are {listed(losses.arms)}; {hint}")
    return losses.arms[0] if reference is None else reference


def default_name(losses: Losses, reference: str | None) -> str:
    """A name by the reference, whatever it is compared to: ``vs-baseline``."""
    return re.sub(r"[^\w.-]+", "-", f"vs-{reference_of(losses, reference)}")


def _looked(folder: Path | None) -> tuple[dict[str, dict[str, str]], dict[str, list[int]]]:
    """The runs that a folder's looks have seen, and the numbers of pairs at these looks; empty without a folder."""
    kept = {} if folder is None or not (folder / LOOKED).exists() else _kept(folder)
    return kept.get("runs", {}), kept.get("looks", {})


def _kept(folder: Path) -> dict[str, Any]:
    """What a decision keeps of its looks."""
    return read_sealed_json(folder / LOOKED, "what was looked at", "begin the decision in another folder")


def _compared(
    losses: Losses,
    arm: str,
    reference: str,
    margin: float,
    confidence: float,
    documents: Documents,
    notes: list[str],
    looked: dict[str, dict[str, str]],
    counts: Sequence[int],
) -> Comparison:
    """An arm against the reference, over the seeds that both have: those of earlier looks first, in their order.

    This look and the earlier ones can decide, at which there were so many pairs (``counts``); not what lies between.
    """
    own, other = losses.seeds(arm), losses.seeds(reference)
    common = _pairs(losses, arm, reference, looked)
    if not common:
        raise DataError(
            f"{arm} has the seeds {_listed(own)}, {reference} {_listed(other)}: none is in both, and runs are paired by "
            "seed; number them alike where they have the same data in the same order"
        )
    for name, seeds in ((arm, own), (reference, other)):
        if alone := [seed for seed in seeds if seed not in common]:
            partner = reference if name == arm else arm
            plural = "s" * (len(alone) > 1)
            notes.append(
                f"Seed{plural} {_listed(alone)} of {name} count{'s' * (not plural)} in no pair: {partner} lacks them."
            )
    differences_SN = np.stack([losses.values[arm, seed] - losses.values[reference, seed] for seed in common])
    found = looks(differences_SN, losses.sizes, confidence, losses.unit)
    half = document_half_width(differences_SN, losses.sizes, confidence)
    where = "" if losses.documents else SEEDS_ALONE
    return Comparison(arm, reference, 0, margin, documents, found, half, where, sorted({*counts, len(common)}))


def _pairs(losses: Losses, arm: str, reference: str, looked: dict[str, dict[str, str]]) -> list[int]:
    """The seeds that an arm and the reference both have: those of earlier looks first, in their order."""
    other = losses.seeds(reference)
    common = [seed for seed in losses.seeds(arm) if seed in other]
    seen = [int(seed) for seed in looked.get(arm, {}) if seed in looked.get(reference, {}) and int(seed) in common]
    return [*seen, *(seed for seed in common if seed not in seen)]


def _listed(seeds: Sequence[int]) -> str:
    return listed([str(seed) for seed in seeds])


def _keep(
    decision: Decision, folder: Path, losses: Losses, looked: dict[str, dict[str, str]], counts: dict[str, list[int]]
) -> None:
    """Keep the look and the result in the decision's folder; refuse what would choose a look by what it says."""
    question = {name: getattr(decision, name) for name in ("reference", "unit", "margin", "confidence", "documents")}
    question |= {"comparisons": len(decision.comparisons), "content": losses.content}
    runs = {arm: {str(seed): losses.digest((arm, seed)) for seed in losses.seeds(arm)} for arm in losses.arms}
    if (folder / LOOKED).exists():
        _refuse_other(folder, question, runs)
    elif folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty and holds no decision; choose another folder with --out")
    # The pairs in the order in which they were looked at, and behind them the seeds that have no partner yet.
    for arm, digests in runs.items():
        pairs = map(str, _pairs(losses, arm, decision.reference, looked))
        runs[arm] = {seed: digests[seed] for seed in dict.fromkeys([*pairs, *digests])}
    counts = counts | {each.arm: sorted({*counts.get(each.arm, []), *each.looked}) for each in decision.comparisons}
    write_sealed_json(folder / LOOKED, {"question": question, "runs": runs, "looks": counts}, "what was looked at")
    write_sealed_json(folder / RESULT, as_json(decision), "the decision")


def _refuse_other(folder: Path, question: dict[str, Any], runs: dict[str, dict[str, str]]) -> None:
    """Refuse another question, and losses that are not those of the looks before."""
    kept = _kept(folder)
    others = [name for name, value in question.items() if kept["question"].get(name) != value]
    changed = [
        (arm, seed)
        for arm, seeds in kept["runs"].items()
        for seed, digest in seeds.items()
        if runs.get(arm, {}).get(seed) != digest
    ]
    if others == ["content"]:
        raise ConfigError(
            f"{folder} was looked at with other documents, or other sizes of them: a run may lack some, or have more; give the "
            "same documents, or another folder with --out"
        )
    if others:
        raise ConfigError(
            f"{folder} holds a decision that was looked at with other settings ({listed(others)}); choose another folder with "
            "--out: after a look only seeds may be added"
        )
    if changed:
        arm, seed = changed[0]
        what = "is missing, but it was there" if seed not in runs.get(arm, {}) else "has other losses than"
        raise ConfigError(
            f"seed {seed} of {arm} {what} when {folder} was looked at; give the same losses, or another folder with --out"
        )
