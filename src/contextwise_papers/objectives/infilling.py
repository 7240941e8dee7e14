"""Fill-in-the-middle (objectives, Section 6.2.5; Bavarian et al. 2022, Section 3 and Appendix D).

A document is cut at two positions into prefix, middle and suffix, and rearranged with the middle last:

- PSM: ``<|fim_prefix|> prefix <|fim_suffix|> suffix <|fim_middle|> middle <|fim_end|>``
- SPM: ``<|fim_prefix|> <|fim_suffix|> suffix <|fim_middle|> prefix middle <|fim_end|>``, as published; with ``spm="marked"``,
the form of Section 6.2.5, ``<|fim_suffix|> suffix <|fim_prefix|> prefix <|fim_middle|> middle <|fim_end|>``.

Whole documents are rewritten, then packed into windows like any others. All tokens are targets, as published.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from contextwise.objectives import Cut, Kind, SingleObjective, SpecialToken, Vocabulary, generator
from contextwise.objectives.objective import RewrittenExamples
from contextwise.settings import ConfigError, DataError
from contextwise_papers.objectives.text import TokenText

if TYPE_CHECKING:
    from contextwise.data import Corpus

# Pieces of these texts must come back from the tokenizer as they were.
_PROBES = ("a b", " b", "  b\n", "\n\n c", "É ée\u0301", "\r\n\t", "日本", "A", " <|x|> ", " n't.")


class Infilling(SingleObjective):
    """Fill-in-the-middle on a share of the documents; the others are unchanged.

    With ``split="character"``, as published, the cuts are two positions between a document's characters, all pairs alike,
    and the three pieces are tokenized separately, so that models meet cuts inside words. This tokenizes the rewritten documents
    again in every epoch, in every process that reads it, and keeps them in memory: 2 or 4 bytes per token of the rewritten
    share. To resume in epoch e, the epochs before it are rewritten to count their windows. With ``split="token"`` they
    are drawn between tokens as in Exercise 6.2.3 (:func:`token_cuts`); nothing is kept or tokenized. No middle is empty.

    ``end_token`` follows the middle, to stop generation. With null, end-of-text after the document stops it, as in the paper.
    """

    name: Literal["infilling"] = "infilling"
    kind: ClassVar[Kind] = "decoder"
    rate: float = Field(default=0.5, gt=0, le=1, description="share of the documents that are rewritten")
    spm_share: float = Field(default=0.5, ge=0, le=1, description="share of rewritten documents in SPM, not PSM")
    split: Literal["character", "token"] = "character"
    spm: Literal["published", "marked"] = "published"
    prefix_token: str = Field(default="<|fim_prefix|>", min_length=1)
    suffix_token: str = Field(default="<|fim_suffix|>", min_length=1)
    middle_token: str = Field(default="<|fim_middle|>", min_length=1)
    end_token: str | None = Field(default="<|fim_end|>", min_length=1)

    @property
    def special_tokens(self) -> list[SpecialToken]:  # type: ignore[override]
        names = [self.prefix_token, self.suffix_token, self.middle_token, self.end_token]
        return [SpecialToken(name) for name in names if name is not None]

    def arrangement(self, vocabulary: Vocabulary) -> Arrangement:
        """The rearrangement of documents with this vocabulary's special tokens."""
        return Arrangement(vocabulary.ids(self.special_tokens, self.name), self.spm == "marked")

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> InfillingExamples:
        return InfillingExamples(self, corpus, cut, seed, vocabulary)


class Arrangement:
    """Rearranges prefix, middle and suffix to a sequence, and restores their order.

    ``ids`` are those of the prefix, suffix, middle and (optionally) end token.
    """

    def __init__(self, ids: list[int], marked: bool = False) -> None:
        self.prefix, self.suffix, self.middle, *self.end = ids
        self.marked = marked

    def write(self, prefix: np.ndarray, middle: np.ndarray, suffix: np.ndarray, spm: bool) -> np.ndarray:
        """Write one rearranged document, int64."""
        if spm and not self.marked:
            parts: list[Any] = [[self.prefix, self.suffix], suffix, [self.middle], prefix, middle, self.end]
        else:
            before, after = ([self.prefix], prefix), ([self.suffix], suffix)
            first, second = (after, before) if spm else (before, after)
            parts = [*first, *second, [self.middle], middle, self.end]
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])

    def restore(self, ids: np.ndarray) -> np.ndarray:
        """Restore the original order of a document's tokens; a document without special tokens is returned unchanged.

        After cuts between characters the tokens differ from the original ones, but their text is the same.
        """
        names = {self.prefix: "P", self.suffix: "S", self.middle: "M"} | dict.fromkeys(self.end, "E")
        marks = np.flatnonzero(np.isin(ids, list(names)))
        form = "".join(names[i] for i in ids[marks].tolist())
        if not form:
            return ids
        end = "E" * len(self.end)
        spm = ("SPM" if self.marked else "PSM") + end
        pieces = [ids[a + 1 : b] for a, b in zip(marks, [*marks[1:], len(ids)], strict=True)]
        whole = marks[0] == 0 and (not end or marks[-1] == len(ids) - 1)
        if not whole or form not in ("PSM" + end, spm):
            raise DataError("the special tokens of a document for infilling are missing or out of place")
        if form == spm and self.marked:
            return np.concatenate([pieces[1], pieces[2], pieces[0]])
        # Published SPM has nothing between its first two tokens, and prefix and middle together after the third.
        return np.concatenate([pieces[0], pieces[2], pieces[1]])


def token_cuts(draw: np.random.Generator, length: int, least_prefix: int = 0, least_suffix: int = 0) -> tuple[int, int]:
    """Where the middle begins and ends (objectives, Exercise 6.2.3): the start uniform, then the end uniform behind it.

    The middle is ``ids[start:end]``, at least one token; so the length must exceed both least lengths together.
    """
    start = int(draw.integers(least_prefix, length - least_suffix))
    return start, int(draw.integers(start + 1, length - least_suffix + 1))


class InfillingExamples(RewrittenExamples):
    """Windows over the documents of an epoch, of which a share is rewritten."""

    def __init__(self, settings: Infilling, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> None:
        super().__init__(cut, vocabulary)
        self.settings, self.corpus, self.seed = settings, corpus, seed
        self.arrangement = settings.arrangement(vocabulary)
        self.pieces = Characters(vocabulary, corpus) if settings.split == "character" else None
        self.windows(0)

    def documents(self, epoch: int) -> InfilledDocuments:
        return InfilledDocuments(self, epoch)


class InfilledDocuments:
    """The documents of one epoch, as :class:`~contextwise.data.windows.Windows` reads a corpus.

    ``cuts``: (first token, last token, SPM) of each rewritten document; empty for cuts between characters.
    """

    def __init__(self, examples: InfillingExamples, epoch: int) -> None:
        self.corpus, self.arrangement, settings = examples.corpus, examples.arrangement, examples.settings
        corpus = self.corpus
        self.path, self.split, self.end_of_text = corpus.path, corpus.split, corpus.end_of_text
        self.cuts: dict[int, tuple[int, int, bool]] = {}
        self.rewritten: dict[int, np.ndarray] = {}
        draws: dict[int, tuple[np.random.Generator, bool]] = {}
        for i in np.flatnonzero(corpus.lengths).tolist():
            draw = generator(examples.seed, epoch, i, settings.name)
            if draw.random() < settings.rate:
                draws[i] = draw, bool(draw.random() < settings.spm_share)
        self.lengths = np.array(corpus.lengths, dtype=np.int64)
        if examples.pieces is not None:
            self.rewritten = examples.pieces.rewrite(corpus, draws, self.arrangement)
            for i, ids in self.rewritten.items():
                self.lengths[i] = len(ids)
            return
        for i, (draw, spm) in draws.items():
            self.cuts[i] = *token_cuts(draw, int(self.lengths[i])), spm
            self.lengths[i] += 3 + len(self.arrangement.end)

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, index: int) -> np.ndarray:
        """Token ids of a document as it is in this epoch."""
        if index in self.rewritten:
            return self.rewritten[index]
        ids = self.corpus.document(index)
        if index not in self.cuts:
            return ids
        first, last, spm = self.cuts[index]
        return self.arrangement.write(ids[:first], ids[first:last], ids[last:], spm)


class Characters:
    """Cuts documents between characters and tokenizes the pieces."""

    def __init__(self, vocabulary: Vocabulary, corpus: Corpus) -> None:
        from contextwise.data.tokenizers import GROUP_BYTES, CorpusTokenizer

        self.group_characters = GROUP_BYTES
        assert vocabulary.tokenizer is not None  # it has the special tokens
        kind = corpus.manifest["tokenizer"]["kind"] if corpus.manifest else "folder"
        # A copy, which reads special tokens in a text as text whatever happens to the tokenizer elsewhere.
        copied = copy.deepcopy(vocabulary.tokenizer)
        self.tokenizer = CorpusTokenizer(copied, kind, str(corpus.path), vocabulary.end("infilling"))
        self.text = TokenText(vocabulary.tokenizer)
        self.dtype = np.dtype(np.uint16 if (vocabulary.size or 2**16 + 1) <= 2**16 else np.uint32)
        # Texts as documents contain them, after the tokenizer's normalization.
        texts = [self.text.read(ids)[0] for ids in self.tokenizer.encode(list(_PROBES))]
        pieces = [piece for text in texts for i in range(len(text)) for piece in (text[:i], text[i:])]
        for piece, ids in zip(pieces, self.tokenizer.encode(pieces), strict=True):
            if (read := self.text.read(ids)[0]) != piece:
                raise ConfigError(
                    f"the objective 'infilling' cuts between characters, but the tokenizer makes {read!r} of {piece!r}; "
                    "set objective.split=token"
                )

    def rewrite(
        self, corpus: Corpus, draws: dict[int, tuple[np.random.Generator, bool]], arrangement: Arrangement
    ) -> dict[int, np.ndarray]:
        """The chosen documents, rewritten; a few megabytes of texts are in memory at a time. Empty texts are left out."""
        rewritten: dict[int, np.ndarray] = {}
        pieces: list[str] = []
        waiting: list[tuple[int, bool]] = []
        characters = 0
        for i, (draw, spm) in draws.items():
            text = self.text.read(corpus.document(i))[0]
            if text:
                first, last = np.sort(draw.choice(len(text) + 1, size=2, replace=False)).tolist()
                pieces += [text[:first], text[first:last], text[last:]]
                waiting.append((i, spm))
                characters += len(text)
            if characters > self.group_characters or i == next(reversed(draws)):
                ids = self.tokenizer.encode(pieces)
                for number, (document, kind) in enumerate(waiting):
                    prefix, middle, suffix = ids[3 * number : 3 * number + 3]
                    written = arrangement.write(prefix, middle, suffix, kind)
                    rewritten[document] = written.astype(self.dtype)
                pieces, waiting, characters = [], [], 0
        return rewritten
