"""Ranking of lists of candidates by a sentence model, given their contexts: ``contextwise measure rescore``.

A list is the n-best list of a recogniser, of a translator. A candidate's score is log P(w1 ... wn end | contexts) in nats, as
``measure sentences`` has it. A text is tokenized unchanged: with a tokenizer that keeps spaces (GPT-2's, ``train:N``) a
sentence out of running text begins with one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field
from rich.console import RenderableType
from rich.text import Text

from contextwise.data import Form, checked, read_objects
from contextwise.measures import InputFile, Measure, Outcome, Result, Subject, Work
from contextwise.report import Column, Table, counted, progress_bar, say, terminal
from contextwise.settings import ConfigError, DataError

if TYPE_CHECKING:
    from contextwise.data import Corpus

LISTS = "one list of candidates a line, as JSON objects"
WANTED = "the texts to rank as 'candidates', or objects with 'text' and 'score'"
SHOWN = 5
"""Lists whose best candidates are in the summary."""


class Candidate(Form):
    """A text to rank, with the score that it came with: a log-probability, or another number that is higher for better ones."""

    text: str
    score: float | None = Field(default=None, allow_inf_nan=False)


class CandidateList(Form):
    """A line of a file: candidates, the contexts that all of them share, by type, and the name of the list."""

    candidates: list[Annotated[Candidate, BeforeValidator(lambda v: {"text": v} if isinstance(v, str) else v)]] = Field(
        min_length=1
    )
    contexts: dict[str, Any] | None = None
    id: Any = None


class RankedLists(Result):
    """Ranked lists of candidates."""

    @property
    def lists(self) -> list[dict[str, Any]]:
        """``id`` (if it has one) and ``ranked`` of each line of the file; the best candidate is first."""
        return self.rows_of("ranked")


class Rescore(Measure):
    """Rank the candidates of each line of a file by their log-probability.

    A line holds candidates for one sentence, such as the n-best list of a speech recognizer, and what is known around it:
    contexts, which a CUE model uses and other models ignore.
    """

    name = "rescore"
    version = 2
    on_corpus = False
    gives_contexts = True
    result = RankedLists

    file: InputFile = Field(description="JSON Lines (.gz too) with lists of candidates.")
    weight: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the model in what is ranked by; the rest are the candidates' own scores.",
    )

    def label(self, corpus: "Corpus | None") -> str:
        return self.file.name.removesuffix(".gz").rpartition(".")[0] or self.file.name

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        """Rows of ``id`` (if the list has one) and ``ranked``, the candidates, the best first.

        A candidate: its ``text``; ``index`` in the given list, from 0; ``log_probability`` of tokens and end, nats; ``tokens``
        of the text; ``per_token``, over tokens and end; ``score``, its own if it has one; ``total``, ``weight *
        log_probability + (1 - weight) * score``, which determines the ``rank``, from 1. Equal ones stay in their order.
        """
        from contextwise.measures import check_tokens
        from contextwise_papers.cue.contexts import context_texts, encoded_sets, trained_types
        from contextwise_papers.cue.sentences.running import Rows, score_rows

        lists = {where: checked(CandidateList, row, where, WANTED) for where, row in read_objects(self.file, LISTS)}
        if not lists:
            raise DataError(f"{self.file} is empty; give {LISTS}")
        tokens = [ids for where, group in lists.items() for ids in self._token_ids(where, group, subject.tokenizer)]
        check_tokens(max(int(ids.max()) for ids in tokens), subject.model)
        types, given = trained_types(subject.config), sum(bool(group.contexts) for group in lists.values())
        further = None
        if given and types:
            sets = [
                texts
                for where, group in lists.items()
                for texts in [context_texts(group.contexts or {}, types, where)] * len(group.candidates)
            ]
            further = encoded_sets(subject.model, subject.source, sets).on(subject.model)
        elif given:
            what = "was trained without contexts" if subject.spec.takes_contexts else "is not a CUE model"
            say(f"note: {subject.source} {what}; the contexts of {given:,} of {len(lists):,} lists are ignored")
        with progress_bar(f"rescore {subject.name}", None, "tokens") as advance:
            rows = Rows(tokens, _end_of_text(subject))
            options: dict[str, Any] = {"batch_tokens": subject.batch_tokens, "on_progress": advance, "work": work}
            nats = score_rows(subject.model, rows, further, **options).document_sums().tolist()
        scored = iter(zip(nats, map(len, tokens), strict=True))
        ranked = [
            {**({} if group.id is None else {"id": group.id}), "ranked": self._ranked(group, scored)}
            for group in lists.values()
        ]
        summary = {
            "lists": len(ranked),
            "candidates": len(tokens),
            "takes_contexts": bool(types),
            "with_contexts": given,
            "changed": sum(row["ranked"][0]["index"] != 0 for row in ranked),
            "best": [{"id": i, **row, **row["ranked"][0]} for i, row in enumerate(ranked[:SHOWN], start=1)],
        }
        return Outcome(summary, {"ranked": ranked})

    def _token_ids(self, where: str, group: CandidateList, tokenizer: Any) -> list[np.ndarray]:
        without = [i for i, candidate in enumerate(group.candidates, start=1) if candidate.score is None]
        if self.weight < 1 and without:
            raise DataError(
                f"{where}: candidate {without[0]} has no score, which a weight of {self.weight:g} needs; give all of them one, "
                "or leave the weight out"
            )
        texts = [candidate.text for candidate in group.candidates]
        # Special tokens that a candidate spells are text, as in the documents of a corpus.
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        tokens: list[list[int]] = tokenizer(texts, **options).input_ids
        for number, ids in enumerate(tokens, start=1):
            if not ids:
                raise DataError(f"{where}: candidate {number} has no tokens; remove it, or give its text")
        return [np.array(ids, dtype=np.int64) for ids in tokens]

    def _ranked(self, group: CandidateList, scored: Iterator[tuple[float, int]]) -> list[dict[str, Any]]:
        """The candidates of a list in order; ``scored`` gives the nats and the tokens of the next one."""
        rows = []
        for index, candidate in enumerate(group.candidates):
            nats, size = next(scored)
            log_p, score, weight = -nats, candidate.score, self.weight
            total = log_p if weight == 1 else weight * log_p + (1 - weight) * (score or 0.0)
            row: dict[str, Any] = {"text": candidate.text, "index": index, "log_probability": log_p, "tokens": size}
            row |= {"per_token": log_p / (size + 1)} | ({} if score is None else {"score": score}) | {"total": total}
            rows.append(row)
        rows.sort(key=lambda row: -row["total"])
        return [row | {"rank": rank} for rank, row in enumerate(rows, start=1)]

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        lists = summary["lists"]
        contexts = f" ({summary['with_contexts']:,} with contexts)" if summary["takes_contexts"] else ""
        heading = (
            f"{summary['model']}: {summary['candidates']:,} candidates in {counted(lists, 'list')}{contexts}. "
            f"In {summary['changed']:,} of them the best is not the one that stood first."
        )
        numbers = Column("log P", "estimate", ".2f"), Column("per token", "estimate", ".3f")
        columns: list[Column | str] = ["list", Column("was", "integer"), *numbers, Column("best", align="left")]
        rows = []
        for best in summary["best"]:
            name, text = _cut(str(best["id"]), 16), _cut(" ".join(best["text"].split()), 30)
            rows.append([name, best["index"] + 1, best["log_probability"], best["per_token"], text])
        shown = len(rows)
        further = [f"and {counted(lists - shown, 'more list')}"] if lists > shown else []
        return terminal(Text(heading), Table("", columns, rows), *further)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _end_of_text(subject: Subject) -> int:
    """Id of the token that begins and ends a sentence: the tokenizer's, else what the model's configuration says."""
    token = subject.tokenizer.eos_token_id
    token = getattr(subject.config, "eos_token_id", None) if token is None else token
    if not isinstance(token, int):
        raise ConfigError(
            "neither the tokenizer nor the model names an end-of-text token, by which a sentence ends; set the tokenizer's "
            "eos_token"
        )
    return token
