"""The held-out documents of a trial: which are left out as near-copies, which the search and which the decision uses."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import DataError
from contextwise.base.estimates import FEWEST_DOCUMENTS, count, counted
from contextwise.base.progress import say
from contextwise.comparison.decided import HeldOut
from contextwise.data import Corpus
from contextwise.data.near_copies import copied_documents, copied_length
from contextwise.experiments.folder import Question
from contextwise.experiments.trial.settings import TrialSettings

SEARCH_SHARE = 4
"""One document in so many, at the start, is for the search over rates."""
MANY_TOKENS = 20_000_000
"""Training tokens with which held-out documents are compared without a message."""


class HeldOutOfTrial(HeldOut):
    """The held-out documents of the decision.

    ``decided`` are their numbers in the split. ``near_copies`` are the documents, by number, that are left out because they
    share half or more of their n-grams with the training text, and that share.
    """

    decided: list[int]
    near_copies: dict[str, float]


class ScoredDocuments:
    """The held-out documents that a trial scores: ``count`` from the first of the split.

    ``trained`` is the part of the training text that the runs read; ``searched`` and ``decided`` are the numbers of the
    documents of the search over rates, and of the decision; none is in both.
    """

    def __init__(self, settings: TrialSettings, trained: Corpus, held_out: Corpus, fingerprints: list[str]) -> None:
        self.trained, self.held_out, self._fingerprints = trained, held_out, fingerprints
        self._settings = settings
        self.count = min(len(held_out), settings.limit or len(held_out))
        self._folder = Question(settings.folder, "trial")
        kept = np.setdiff1d(np.arange(self.count), list(self.near_copies))
        searched = 0 if settings.rates is None else max(1, len(kept) // SEARCH_SHARE)
        self.searched, self.decided = kept[:searched], kept[searched:]
        if len(self.decided) < FEWEST_DOCUMENTS:
            copies = self.count - len(kept)
            taken = {"near-copies of training text": copies, "for the rates": len(self.searched)}
            words = "".join(f", {number} of them {what}" for what, number in taken.items() if number)
            scored, fix = f"holds out {counted(self.count, 'document')}", ""
            if self.count < len(held_out):
                scored, fix = f"is scored on {self.count} held-out documents (limit)", "raise limit, or "
            raise DataError(
                f"the corpus {settings.corpus} {scored}{words}, but a decision needs {FEWEST_DOCUMENTS} or more; {fix}prepare "
                f"the corpus again with a larger --validation{' and --deduplicate 0.8' * bool(copies)}"
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
            if (known["text"], known["documents"]) == (self.trained.fingerprint, self.count):
                return {int(number): share for number, share in known["shares"].items()}
        if self.trained.tokens > MANY_TOKENS:
            say(f"comparing {self.count} held-out documents with {count(self.trained.tokens)} training tokens")
        return copied_documents(self.trained, self.held_out, self.count)

    @property
    def compared(self) -> dict[str, Any]:
        """The near-copies and what was compared, for the trial's plan."""
        shares = {str(number): share for number, share in self.near_copies.items()}
        return {"text": self.trained.fingerprint, "documents": self.count, "shares": shares}

    def to_dict(self, tokens: int) -> HeldOutOfTrial:
        """The documents of the decision as JSON values; ``tokens`` are those that are scored in them."""
        return HeldOutOfTrial(
            documents=len(self.decided),
            tokens=tokens,
            decided=[int(number) for number in self.decided],
            near_copies=self.compared["shares"],
        )

    @property
    def notes(self) -> list[str]:
        """How many documents copy training text, and whether few of those of the decision hold half of its tokens."""
        notes, copies = [], self.near_copies
        search = f"the search over rates reads {len(self.searched)}, and the other {len(self.decided)} decide"
        rest = f"; of the rest, {search}" if len(self.searched) else ""
        if copies:
            one, most = len(copies) == 1, max(copies, key=copies.__getitem__)
            share, their, they = ("shares", "its", "It is") if one else ("share", "their", "They are")
            notes.append(
                f"{len(copies)} of {self.count} held-out documents {share} half or more of {their} "
                f"{copied_length(self.trained)}-grams of tokens with the training text (no. {most} most, "
                f"{copies[most]:.0%}). {they} left out{rest}."
            )
        elif rest:
            notes.append(f"Of the {self.count} held-out documents, {search}.")
        tokens = np.sort(self.held_out.lengths[self.decided])[::-1].cumsum()
        largest = int(np.searchsorted(tokens, tokens[-1] / 2)) + 1
        if largest <= max(1, len(tokens) // 10):
            hold = "holds" if largest == 1 else "hold"
            notes.append(f"{largest} of the {len(tokens)} documents that decide {hold} half of the tokens.")
        return notes
