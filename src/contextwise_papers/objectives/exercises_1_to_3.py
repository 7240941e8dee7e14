"""Inputs and targets of pretraining objectives on the same text: objectives, Exercises 6.2.1 to 6.2.3 and Table 6.2.1b.

Nothing is trained. Nats per target of different objectives are not comparable, so the objectives are compared by counts.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from contextwise.data import Corpus
from contextwise.objectives import (
    NO_LOSS,
    AnyObjective,
    Cut,
    Examples,
    Kind,
    SingleObjective,
    Vocabulary,
    add_special_tokens,
)
from contextwise.report import written
from contextwise.settings import ConfigError, Settings
from contextwise.stats import Estimate, mean_estimate, wilson
from contextwise_papers.claims import Claim, contains, exact, undecided
from contextwise_papers.item import CorpusMeasure, Item, Outcome
from contextwise_papers.objectives import Infilling, SpanCorruption
from contextwise_papers.objectives.infilling import Arrangement, token_cuts
from contextwise_papers.objectives.multitoken.modeling import future_targets
from contextwise_papers.objectives.spans import SpanExamples
from contextwise_papers.objectives.text import TokenText
from contextwise_papers.tables import table_of


class TextOnly(CorpusMeasure):
    """A measure of the examples that are made of a corpus; it trains nothing."""

    seed: int = Field(default=0, ge=0)
    split: str = "train"

    def measure(self, item: Item, folder: Path) -> Outcome:
        return self.counted(item, Corpus.open(self.prepared(folder), split=self.split))

    @abstractmethod
    def counted(self, item: Item, corpus: Corpus) -> Outcome:
        """The outcome of a corpus."""


def vocabulary_of(objective: Any, corpus: Corpus) -> Vocabulary:
    """The corpus's tokenizer with what the objective needs."""
    tokenizer = corpus.tokenizer()
    add_special_tokens(tokenizer, objective.special_tokens)
    return Vocabulary(tokenizer, corpus.end_of_text)


class Counted(Settings):
    """An objective whose examples are counted."""

    objective: AnyObjective
    context: int | None = Field(default=None, ge=4, description="in place of the item's; the encoder's, if any")
    heads: int = Field(default=1, ge=1, description="tokens that are predicted at each position")
    share: float | None = Field(default=None, gt=0, description="of the text, that is trained on by the document")
    says: str = Field(default="", description="the document's own words for it")


class ObjectiveCounts(TextOnly, name="objective_counts"):
    """Targets of each objective per token of text (Exercise 6.2.1, Table 6.2.1b)."""

    context: int = Field(default=512, ge=16)
    examples: int = Field(default=500, ge=2, description="of each objective")
    objectives: dict[str, Counted] = Field(min_length=1)
    tolerance: float = Field(default=0.02, gt=0, description="relative, for the document's shares")
    ratio: tuple[str, str] | None = Field(default=None, description="objectives whose targets per token are compared")

    def counted(self, item: Item, corpus: Corpus) -> Outcome:
        counts = {name: self._count(name, objective, corpus) for name, objective in self.objectives.items()}
        # Text targets per token of text, with the interval over examples.
        shares = {name: mean_estimate(of["learned"] / of["text"]) for name, of in counts.items()}
        table = table_of(
            f"Tokens, means over {self.examples:,} examples of each objective; the last column with 95% intervals",
            ["objective", ("read", ",.1f"), ("of text", ",.1f"), ("targets", ",.1f"), ("text targets", ",.1f"),
             ("for each token of text", ".3f")],
            [
                [name, *(of[key].mean() for key in ("positions", "text", "targets", "learned")), shares[name]]
                for name, of in counts.items()
            ],
        )  # fmt: skip
        claims = []
        for name, objective in self.objectives.items():
            if objective.share is not None:
                share = shares[name].value
                deviation = share / objective.share - 1
                says = f" ({objective.says})" if objective.says else ""
                text = f"{name}: {objective.share:.3g} text targets for each token of text{says}"
                verdict = exact(abs(deviation) <= self.tolerance, deviation)
                claims.append(Claim.of(text, verdict, f"{share:.4f}, {written(deviation, '+.1%')}"))
        if self.ratio is not None:
            first, second = self.ratio
            ratio, printed = shares[first].value / shares[second].value, item.printed.get("ratio")
            verdict = undecided("the item has no printed ratio")
            if printed is not None:
                verdict = exact(abs(ratio / printed - 1) <= self.tolerance, ratio)
            text = f"{first} has about {printed} times as many targets per token as {second}"
            claims.append(Claim.of(text, verdict, f"{ratio:.2f} times"))
        means = {name: {key: values.mean() for key, values in of.items()} for name, of in counts.items()}
        return Outcome([table], claims, means)

    def _count(self, name: str, counted: Counted, corpus: Corpus) -> dict[str, np.ndarray]:
        objective = counted.objective
        if not isinstance(objective, SingleObjective):
            raise ConfigError(f"{name} is a mixture of objectives; count them one by one")
        vocabulary = vocabulary_of(objective, corpus)
        examples = objective.examples(corpus, Cut(counted.context or self.context), self.seed, vocabulary)
        rows = [
            count_example(example, vocabulary, objective.kind, counted.heads)
            for example in some(examples, self.examples, self.seed)
        ]
        return {key: np.array([row[key] for row in rows], dtype=float) for key in rows[0]}


def some(examples: Examples, count: int, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Some examples of the first epoch, none twice."""
    total = examples.count(0)
    for index in np.random.default_rng(seed).permutation(total)[:count].tolist():
        yield examples.example(0, index)


def count_example(
    example: dict[str, torch.Tensor], vocabulary: Vocabulary, kind: Kind, heads: int = 1
) -> dict[str, int]:
    """Count the ``positions`` of an example that a model of this kind reads, tokens of its ``text``, its ``targets``
    (for so many heads), and those of them that are text (``learned``): no sentinel, no end.
    """
    inputs, labels = example["input_ids"], example["labels"]
    special = torch.from_numpy(vocabulary.special)
    targets = [labels] if heads == 1 else [row[0] for row in future_targets(labels[None], heads, None)]
    predicted = [row[row != NO_LOSS] for row in targets]
    learned = sum(int((~torch.isin(row, special)).sum()) for row in predicted)
    plain = ~torch.isin(inputs, special)
    if kind == "encoder":  # a token that is predicted is text, whatever hides it
        plain |= labels != NO_LOSS
    decoder_reads = kind == "encoder-decoder"
    return {
        "positions": len(inputs) + (len(labels) if decoder_reads else 0),
        "text": int(plain.sum()) + (learned if decoder_reads else 0),
        "targets": sum(len(row) for row in predicted),
        "learned": learned,
    }


class SpanBudget(TextOnly, name="span_budget"):
    """Noise, spans and lengths of span corruption (Exercise 6.2.2)."""

    window: int = Field(default=512, ge=8, description="tokens of text in an example")
    examples: int = Field(default=500, ge=2)
    objective: SpanCorruption = SpanCorruption()

    def counted(self, item: Item, corpus: Corpus) -> Outcome:
        vocabulary = vocabulary_of(self.objective, corpus)
        sentinels = np.array(vocabulary.ids(self.objective.special_tokens, "spans"))
        context = self.objective.denoiser.input_length(self.window)
        examples = self.objective.examples(corpus, Cut(context), self.seed, vocabulary)
        assert isinstance(examples, SpanExamples)
        rows: dict[str, list[int]] = {"window": [], "noise": [], "spans": [], "encoder": [], "decoder": []}
        restored_exactly = 0
        for example in some(examples, self.examples, self.seed):
            inputs, labels = example["input_ids"].numpy(), example["labels"].numpy()
            spans = int(np.isin(labels, sentinels).sum())
            restored = examples.restore(example)
            window = examples.windows[int(example["window"])]["input_ids"].numpy()
            restored_exactly += bool(np.array_equal(restored, window))
            # The exercise counts no end of the input, and one after the target.
            counts = (len(restored), len(labels) - spans - 1, spans, len(inputs) - 1, len(labels))
            for key, value in zip(rows, counts, strict=True):
                rows[key].append(value)
        count, means = len(rows["window"]), {key: float(np.mean(values)) for key, values in rows.items()}
        printed = {"window": self.window, **item.printed.get("counts", {})}
        table = table_of(
            f"{count:,} examples of {corpus.path.name}",
            ["", "least", ("mean", ".1f"), "most", "document"],
            [[key, min(v), means[key], max(v), printed.get(key)] for key, v in rows.items()],
        )
        claims = []
        for key in ("noise", "spans", "encoder", "decoder"):
            if key in printed:
                low, high = min(rows[key]), max(rows[key])
                evidence = f"{means[key]:.1f} in every example" if low == high else f"{low} to {high}"
                verdict = exact(abs(means[key] - printed[key]) <= 1)
                claims.append(Claim.of(f"{key}: about {printed[key]}", verdict, evidence))
        shorter, longest = exact(max(rows["encoder"]) < min(rows["window"])), max(rows["encoder"])
        complete, text = exact(restored_exactly == count), "input and target together give the text back"
        claims.append(Claim.of(text, complete, f"{restored_exactly} of {count}"))
        text, evidence = ("the encoder's input is shorter than the text", f"{longest} of {min(rows['window'])} tokens")
        claims.append(Claim.of(text, shorter, evidence))
        return Outcome([table], claims, means)


class FimFormats(TextOnly, name="fim_formats"):
    """The formats of fill-in-the-middle, checked on every document of a corpus (Exercise 6.2.3)."""

    objective: Infilling = Infilling()
    prefix_len: int = Field(default=4, ge=0, description="least tokens of a prefix in the exercise's own function")
    suffix_len: int = Field(default=4, ge=0)
    limit_documents: int | None = Field(default=None, ge=2, description="only the first so many")

    def counted(self, item: Item, corpus: Corpus) -> Outcome:
        vocabulary = vocabulary_of(self.objective, corpus)
        tokenizer = vocabulary.tokenizer
        assert tokenizer is not None
        examples = self.objective.examples(corpus, Cut(8), self.seed, vocabulary)
        epoch, arrangement, text = examples.documents(0), examples.arrangement, TokenText(tokenizer)
        numbers = np.flatnonzero(corpus.lengths)[: self.limit_documents].tolist()
        forms: dict[str, list[bool]] = {"PSM": [], "SPM": [], "as it was": []}
        for i in numbers:
            written = epoch.document(i)
            same = text.read(arrangement.restore(written))[0] == text.read(corpus.document(i))[0]
            forms[_form(written, arrangement)].append(same)
        psm, rewritten = len(forms["PSM"]), len(forms["PSM"]) + len(forms["SPM"])
        shaped, fitting = self._exercise(corpus, numbers, arrangement, tokenizer)
        own = f"the exercise's function, {self.prefix_len} and {self.suffix_len} tokens kept"
        rows = [[form, len(same), sum(same)] for form, same in forms.items()]
        columns = ["form", "documents", "the text came back"]
        table = table_of(f"{len(numbers):,} documents of {corpus.path.name}", columns, [*rows, [own, fitting, shaped]])
        every = [same for of_form in forms.values() for same in of_form]
        claims = [
            Claim.of("every document, rewritten, holds its own text", exact(all(every)), f"{sum(every)} of {len(numbers)}"),
            _near("half of the documents are rewritten", rewritten, len(numbers), self.objective.rate),
            _near("half of those begin with the prefix, half with the suffix", psm, rewritten, 1 - self.objective.spm_share),
            Claim.of(
                "<|fim_prefix|>PREFIX<|fim_suffix|>SUFFIX<|fim_middle|>MIDDLE, with the least prefix and suffix, of every "
                "document that is long enough",
                exact(shaped == fitting) if fitting else undecided("no document is long enough"), f"{shaped} of {fitting}"),
        ]  # fmt: skip
        return Outcome([table], claims, {"forms": {form: len(same) for form, same in forms.items()}})

    def _exercise(
        self, corpus: Corpus, numbers: list[int], arrangement: Arrangement, tokenizer: Any
    ) -> tuple[int, int]:
        """Number of documents with the exercise's format, and of documents that are long enough for it."""
        draw, correct, fitting = np.random.default_rng(self.seed), 0, 0
        decode = functools.partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        names = [self.objective.prefix_token, self.objective.suffix_token, self.objective.middle_token]
        for i in numbers:
            ids = corpus.document(i)
            if len(ids) < self.prefix_len + self.suffix_len + 1:
                continue
            fitting += 1
            start, end = token_cuts(draw, len(ids), self.prefix_len, self.suffix_len)
            prefix, middle, suffix = ids[:start], ids[start:end], ids[end:]
            written = arrangement.write(prefix, middle, suffix, False)[: -len(arrangement.end) or None]
            parts = zip(names, (prefix, suffix, middle), strict=True)
            wanted = "".join(name + decode(part) for name, part in parts)
            kept = len(prefix) >= self.prefix_len and len(suffix) >= self.suffix_len and len(middle) >= 1
            correct += kept and decode(written) == wanted
        return correct, fitting


def _form(ids: np.ndarray, arrangement: Arrangement) -> str:
    """The form of a document: the middle's token follows the prefix's and the suffix's in both forms."""
    if not np.isin(ids, [arrangement.prefix, arrangement.suffix]).any():
        return "as it was"
    if arrangement.marked:
        return "SPM" if ids[0] == arrangement.suffix else "PSM"
    # Published SPM has nothing between the two; a PSM document whose prefix is empty is the same sequence.
    return "SPM" if ids[1] == arrangement.suffix else "PSM"


def _near(text: str, count: int, total: int, expected: float) -> Claim:
    """Whether the interval of a share contains the expected one."""
    share = replace(wilson(count / total, total), documents=total) if total else Estimate(math.nan)
    return Claim.of(text, contains(share, expected), f"{share:.3f}; {expected:g} is expected")
