"""Supervised fine-tuning on instructions: the response from the prompt (ContextLM, Section 3.4; Taori et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from contextwise.base.progress import say_once
from contextwise.data.documents import check_ids
from contextwise.objectives import NO_LOSS, Cut, Examples, Kind, SingleObjective, Vocabulary
from contextwise.settings import ConfigError, DataError
from contextwise_papers.objectives.alpaca import CHAT_TEMPLATE, PROMPT_CHARACTERS, RESPONSE
from contextwise_papers.objectives.text import TokenText

if TYPE_CHECKING:
    from contextwise.data import Corpus


class Instruction(SingleObjective):
    """One example is one instruction: end-of-text, prompt, response, end-of-text, padded to ``data.context``.

    The loss is on the response and the end-of-text after it. A token that contains the prompt's last character and the
    response's first belongs to the prompt, as in the published script. Texts longer than the context lose their end; those
    that lose their whole response are left out. Documents are never joined, whatever ``data.cross_documents`` says. Nothing
    is random: two runs on a corpus with the same seed, context and batch have the same examples in the same order.
    """

    name: Literal["instruction"] = "instruction"
    kind: ClassVar[Kind] = "decoder"
    columns: ClassVar[list[str]] = [PROMPT_CHARACTERS]  # where the response begins
    chat_template: ClassVar[str] = CHAT_TEMPLATE

    def examples(self, corpus: Corpus, cut: Cut, seed: int, vocabulary: Vocabulary) -> InstructionExamples:
        return InstructionExamples(corpus, cut.context, vocabulary)


class InstructionExamples(Examples):
    """The instructions of a corpus with the first token of each response, the same in every epoch.

    Those whose response is beyond the context are ``left_out``.
    """

    def __init__(self, corpus: Corpus, context: int, vocabulary: Vocabulary) -> None:
        self.corpus, self.context, self.vocabulary = corpus, context, vocabulary
        self.end = vocabulary.end("instruction")
        first = response_starts(corpus)
        kept = first < np.minimum(corpus.lengths, context)
        self.documents, self.first = np.flatnonzero(kept), first[kept]
        self.truncated = int((corpus.lengths[kept] >= context).sum())
        self.left_out = int((~kept).sum())
        source = f"the split {corpus.split!r} of {corpus.path}"
        if not len(self.documents):
            raise DataError(f"no response of {source} begins within {context} tokens; choose a larger data.context")
        if self.truncated or self.left_out:
            say_once(
                f"note: of {len(kept):,} instructions in {source}, {self.truncated:,} are cut off at {context} tokens and "
                f"{self.left_out:,} have no response left and are not used; a larger data.context keeps them"
            )

    def count(self, epoch: int) -> int:
        return len(self.documents)

    def arrays(self, epoch: int, index: int) -> dict[str, Any]:
        tokens = self.corpus.document(int(self.documents[index]))[: self.context].astype(np.int64)
        check_ids(tokens, self.vocabulary.size, self.corpus.path)
        ids, labels = np.full(self.context, self.end), np.full(self.context, NO_LOSS)
        ids[1 : len(tokens) + 1] = tokens[: self.context - 1]
        first = int(self.first[index])
        labels[first : len(tokens)] = tokens[first:]
        labels[len(tokens) : len(tokens) + 1] = self.end
        return {"input_ids": ids, "labels": labels, "window": index, "read": min(len(tokens) + 1, self.context)}


def response_starts(corpus: Corpus) -> np.ndarray:
    """The first token of each document that begins within its response, (documents,); its length if none does."""
    tokenizer = corpus.tokenizer()
    if tokenizer is None or PROMPT_CHARACTERS not in corpus.columns:
        raise ConfigError(
            f"the objective 'instruction' needs a corpus of instructions, which {corpus.path} is not; "
            "prepare one with `contextwise prepare alpaca:FILE --tokenizer MODEL --out FOLDER`"
        )
    text = TokenText(tokenizer)
    first = np.zeros(len(corpus), dtype=np.int64)
    for index, characters in enumerate(corpus.column(PROMPT_CHARACTERS)):
        if characters is None:
            raise ConfigError(
                f"document {index:,} of {corpus.path} is no instruction; prepare instructions and texts as two corpora"
            )
        written, starts = text.read(corpus.document(index))
        # A document that was cut before its response has no end of a prompt to check.
        if len(written) >= characters and not written[:characters].endswith(RESPONSE):
            raise ConfigError(
                f"the tokenizer of {corpus.path} does not keep the text of its documents, so that the place where a response "
                "begins is lost; prepare the instructions with another tokenizer"
            )
        first[index] = np.searchsorted(starts[:-1], characters)
    return first
