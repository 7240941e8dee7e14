"""The held-out documents of a trial: which are left out as near-copies, which the search and which the decision uses."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import DataError, one_line
from contextwise.base.estimates import FEWEST_DOCUMENTS, count, counted, listed
from contextwise.base.intervals import effective_number
from contextwise.base.progress import say
from contextwise.comparison.decided import HeldOut
from contextwise.data import Corpus
from contextwise.data.near_copies import copied_documents, copied_length
from contextwise.experiments.folder import Question
from contextwise.experiments.trial.settings import TrialSettings

SEARCH_SHARE = 4
"""One document in so many, at the start, is for the search over rates."""
HEAVY, TIMES = 0.1, 2
"""A document that holds this share of the tokens, and so many times an equal share, is named in a note."""
NAMES = ("title", "name", "path", "file", "url", "id")
"""Metadata by which a document is named in a note, the first of those that it has."""
MANY_TOKENS = 20_000_000
"""Training tokens with which held-out documents are compared without a message."""


class HeldOutOfTrial(HeldOut):
    """The held-out documents of the decision.

    ``decided`` are their numbers in the split. ``effective_documents`` of equal size weigh as much. ``near_copies`` are the
    documents, by number, that share half or more of their n-grams with the training text, and that share;
    ``near_copies_left_out`` says whether they decide nothing.
    """

    decided: list[int]
    effective_documents: float
    near_copies: dict[str, float]
    near_copies_left_out: bool


class ScoredDocuments:
    """The held-out documents that a trial scores.

    Attributes:
        trained: the part of the training text that the runs read.
        held_out: the split; ``count`` of its documents, from the first, are scored.
        searched, decided: numbers of the documents of the search over rates, and of the decision; none is in both.

    Raises:
        DataError: too few are left for a decision.
    """

    def __init__(self, settings: TrialSettings, trained: Corpus, held_out: Corpus, fingerprints: list[str]) -> None:
        self.trained, self.held_out, self._fingerprints = trained, held_out, fingerprints
        self._settings = settings
        self.count = min(len(held_out), settings.limit or len(held_out))
        self._folder = Question(settings.folder, "trial")
        self.leaves_out = settings.near_copies == "leave_out"
        kept = np.setdiff1d(np.arange(self.count), list(self.near_copies) if self.leaves_out else [])
        searched = 0 if settings.rates is None else max(1, len(kept) // SEARCH_SHARE)
        self.searched, self.decided = kept[:searched], kept[searched:]
        self._check(Path(settings.corpus), self.count - len(kept))

    def _check(self, corpus: Path, left_out: int) -> None:
        if len(self.decided) >= FEWEST_DOCUMENTS:
            return
        copies = f", {left_out} of them near-copies of training text" if left_out else ""
        search = f", {len(self.searched)} of them for the rates" if len(self.searched) else ""
        fix = " and --deduplicate 0.8, or keep them (near_copies: keep)" if left_out else ""
        fix = f"prepare the corpus again with a larger --validation{fix}"
        held = f"holds out {counted(self.count, 'document')}"
        if self.count < len(self.held_out):
            held, fix = f"is scored on {self.count} held-out documents (limit)", f"raise limit, or {fix}"
        raise DataError(
            f"the corpus {corpus} {held}{copies}{search}, but a decision needs {FEWEST_DOCUMENTS} or more; {fix}"
        )

    def evaluation(self, folder: Path, documents: int) -> Any:
        """The evaluation of a run on the first held-out documents."""
        from contextwise.evaluation.kernel import measure

        limit = None if documents == len(self.held_out) else documents
        return measure(folder, self._settings.measure(limit), self.held_out)

    @cached_property
    def near_copies(self) -> dict[int, float]:
        """The documents that copy training text: number -> the share of their n-grams that it holds, half or more.

        They are read from the trial's plan where it has compared the same texts.
        """
        if self._folder.exists and (plan := self._folder.plan())["corpora"] == self._fingerprints:
            known = plan["near_copies"]
            if all(known[name] == value for name, value in self._compared.items()):
                return {int(number): share for number, share in known["shares"].items()}
        if self.trained.tokens > MANY_TOKENS:
            say(f"comparing {self.count} held-out documents with {count(self.trained.tokens)} training tokens")
        return copied_documents(self.trained, self.held_out, self.count)

    @property
    def _compared(self) -> dict[str, Any]:
        return {"text": self.trained.fingerprint, "documents": self.count}

    @property
    def compared(self) -> dict[str, Any]:
        """The near-copies and what was compared, for the trial's plan."""
        return {**self._compared, "shares": {str(number): share for number, share in self.near_copies.items()}}

    def to_dict(self, tokens: int) -> HeldOutOfTrial:
        """The documents of the decision as JSON values; ``tokens`` are those that are scored in them."""
        return HeldOutOfTrial(
            documents=len(self.decided),
            tokens=tokens,
            decided=[int(number) for number in self.decided],
            effective_documents=self._effective,
            near_copies=self.compared["shares"],
            near_copies_left_out=self.leaves_out,
        )

    @property
    def _sizes(self) -> np.ndarray:
        return self.held_out.lengths[self.decided].astype(np.float64)

    @property
    def _effective(self) -> float:
        """The number of documents of equal size that weigh as much as those of the decision."""
        return effective_number(self._sizes)

    def _named(self, number: int) -> str:
        """A document by its number, and by the first of :data:`NAMES` that its metadata have: no. 14 "Robert Boulter"."""
        metadata = self.held_out.metadata(number)
        texts = {
            column.rpartition(".")[2]: one_line(value, 60)
            for column, value in reversed(metadata.items())
            if isinstance(value, str | int) and not isinstance(value, bool)
        }
        return f"no. {number}" + next((f' "{texts[name]}"' for name in NAMES if texts.get(name)), "")

    @property
    def notes(self) -> list[str]:
        """Which documents copy training text, and which of those of the decision weigh much."""
        notes, copies = [], self.near_copies
        if copies:
            one, most = len(copies) == 1, max(copies, key=copies.__getitem__)
            share, their, they = ("shares", "its", "It is") if one else ("share", "their", "They are")
            fate = f"kept, and {their} loss{'es' * (not one)} may tell what was memorized"
            if self.leaves_out:
                fate = f"left out of the search and the decision (near_copies: keep keeps {'it' if one else 'them'})"
            notes.append(
                f"{len(copies)} of {self.count} held-out documents {share} half or more of {their} "
                f"{copied_length(self.trained)}-grams of tokens with the training text ({self._named(most)} most, "
                f"{copies[most]:.0%}). {they} {fate}."
            )
        shares = self._sizes / self._sizes.sum()
        heavy = np.flatnonzero((shares >= HEAVY) & (shares * len(shares) >= TIMES))
        if len(heavy):
            order = heavy[np.argsort(-shares[heavy], kind="stable")]
            named = listed([f"{self._named(int(self.decided[i]))} ({shares[i]:.0%} of the tokens)" for i in order])
            notes.append(
                f"Of the {len(shares)} documents that decide, {named} dominate{'s' * (len(heavy) == 1)} the result: "
                f"the effective number of documents (of equal size, Kish 1965) is {self._effective:.1f}."
            )
        return notes
