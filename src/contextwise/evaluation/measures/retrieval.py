"""Retrieval and ordering of texts by the cosines of a model's embeddings: ``contextwise retrieval``.

Objectives, Section 6.2.2, compares embeddings "with cosine similarity for retrieval", and warns that pooled states of a
pretrained model are not semantic out of the box. Two tasks that need no labels measure that on the documents of a corpus:

- **Retrieval**: a query (a metadata column such as the title, or the first sentence) is to find its document (without that
  sentence) among all. The rank of the document is 1 plus the number of nearer ones; equally near ones share the mean of
  their ranks, so that a model whose vectors are all equal finds nothing. Recall@k is the share of queries with a rank
  of at most k, MRR the mean of 1 / rank.
- **Ordering**, in the manner of semantic textual similarity (STS): the first half of a document is to be nearer to its second
  half than to that of a document of the same topic, and this nearer than that of a document without a common topic. The
  measure is Spearman's correlation of the cosines with that order, over three pairs (two without a topic) of each document.

Both are measured with vectors as they are, and whitened (:mod:`contextwise.models.whitening`), fitted to the documents alone.

Shapes: N documents, Q queries, A documents of the ordering, D channels.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import Field
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.base.tables import Column, Table
from contextwise.evaluation.kernel import Measure, Outcome, Subject, Work

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.models.embedding import Embedder

KS = (1, 10)
_ROWS = 1024  # queries that are compared with all documents at once
_TRIES = 1000  # draws of a document without a common topic


class Retrieval(Measure):
    """Measure how well a model's embeddings find the document of a query.

    Prints recall@1 and @10 and the mean reciprocal rank with 95% intervals over queries, and the rank correlation of cosines
    with the order same document, same topic, other document; with vectors as they are, and whitened.
    """

    name = "retrieval"
    model_types = ("encoder", "decoder", "encoder-decoder")

    query: str | None = Field(
        None,
        description="Metadata column with the text of a document's query, such as title; default: its first sentence.",
    )
    topic: str | None = Field(
        None, description="Metadata column with the topic, or a list of topics, of a document, for the ordering."
    )
    pooling: Literal["cls", "mean", "last"] | None = Field(
        None,
        description="The state at [CLS], the mean over all tokens, or the last token's; default: that of contrastive "
        "training, else last for a decoder and mean for others.",
    )
    layer: int | None = Field(None, ge=0, description="Whose output is pooled; 0: the embeddings; default: the last.")
    components: int | None = Field(None, ge=1, description="Numbers of a whitened vector; default: all.")
    max_tokens: int | None = Field(
        None, ge=1, description="Longer texts are split into chunks of so many tokens; default: what the model allows."
    )
    overlap: int | None = Field(
        None, ge=0, description="Tokens that neighbouring chunks share; default: a quarter of a chunk."
    )
    anchors: int = Field(500, ge=2, description="Documents of the ordering, at most.")
    limit: int | None = Field(None, ge=2, description="Only the first N documents.")
    language: str = Field("en", description="Whose rules cut off the first sentence, as an ISO 639 code.")
    seed: int = Field(0, ge=0, description="Of the pairs of the ordering.")

    def resolved(self, subject: Subject, corpus: "Corpus | None") -> Self:
        from contextwise.data.contexts import column_texts
        from contextwise.models.embedding import load_text_model
        from contextwise.models.loading import kind_of

        assert corpus is not None
        for column in self.metadata_columns:
            column_texts(corpus, column)  # a wrong name is an error before the model is opened
        if not subject.loaded and kind_of(subject.config) == "encoder":
            subject.model = load_text_model(subject.source, subject.dtype, subject.device)
        return self

    @property
    def metadata_columns(self) -> list[str]:
        return [column for column in (self.query, self.topic) if column is not None]

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        import pyarrow as pa

        from contextwise.base.intervals import mean_estimate, wilson
        from contextwise.models.embedding import Embedder

        assert corpus is not None
        texts = _Texts(corpus, self)
        pairs_AL = texts.pairs(self)
        options: dict[str, Any] = {"pooling": self.pooling, "layer": self.layer, "split": True}
        options |= {"max_tokens": self.max_tokens, "overlap": self.overlap}
        embedder = Embedder(subject.model, subject.tokenizer, **options)
        documents_ND = _embed(embedder, texts.documents, "documents")
        queries_QD = _embed(embedder, [texts.queries[i] or "" for i in texts.asked], "queries")
        halves = np.unique(pairs_AL)
        halves_D = dict(zip(halves.tolist(), _embed(embedder, [texts.half(i) for i in halves], "halves"), strict=True))
        rows = {"document": np.array(texts.numbers)[texts.asked]}
        summary: dict[str, Any] = {"documents": len(documents_ND), "queries": len(queries_QD)}
        summary |= {"width": documents_ND.shape[1], "pooling": embedder.pooling, "layer": embedder.layer.number}
        summary |= {"pairs": pairs_AL.size - len(pairs_AL), "components": None, "forms": {}}
        forms: dict[str, Any] = {"plain": lambda vectors: vectors}
        if (whitening := self._whitening(documents_ND)) is not None:
            forms["whitened"], summary["components"] = whitening, whitening.matrix.shape[1]
        for name, change in forms.items():
            rank_Q = ranks(change(queries_QD), change(documents_ND), np.array(texts.asked))
            rows[f"{name}_rank"] = rank_Q
            changed = {number: change(vector[None])[0] for number, vector in halves_D.items()}
            values = {f"recall_{k}": wilson(float((rank_Q <= k).mean()), len(rank_Q)) for k in KS}
            values |= {"mrr": mean_estimate(1 / rank_Q), "ordering": ordering(changed, pairs_AL)}
            summary["forms"][name] = {key: value.to_dict() for key, value in values.items()}
        gain = None if whitening is None else mean_estimate(1 / rows["whitened_rank"] - 1 / rows["plain_rank"])
        summary["mrr_gain"] = None if gain is None else gain.to_dict()
        return Outcome(summary, {"queries": pa.table(rows)})

    def _whitening(self, documents_ND: np.ndarray) -> Any:
        """The whitening of the documents; None, with a note, if there are too few for all numbers of a vector."""
        from contextwise.models.whitening import Whitening

        try:
            return Whitening.fit(documents_ND, self.components)
        except DataError as error:
            if self.components is not None:
                raise
            say(f"note: vectors are not whitened: {error}; --components N whitens fewer numbers")
            return None

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        settings = summary["settings"]
        query = "first sentence → rest" if settings["query"] is None else f"{settings['query']} → document"
        heading = (
            f"{summary['model']} on {summary['label']}: {query}, {summary['queries']:,} queries among "
            f"{summary['documents']:,} documents (by chance recall@1 is {1 / summary['documents']:.4f}). "
            f"Ordering: Spearman's correlation with same document{' > same topic' if settings['topic'] else ''} > other "
            f"document, over {summary['pairs']:,} pairs. Vectors of {summary['width']} numbers"
            + (f", {summary['components']} when whitened." if summary["components"] else ".")
        )
        titles = ("recall@1", "recall@10", "MRR", "ordering")
        columns = [Column("vectors", width=8), *(Column(title, "estimate", interval="below") for title in titles)]
        rows = [
            [form, *(Estimate.from_dict(values[key]) for key in ("recall_1", "recall_10", "mrr", "ordering"))]
            for form, values in summary["forms"].items()
        ]
        notes = []
        if summary["mrr_gain"] is not None:
            notes = [f"Whitening changes the MRR by {Estimate.from_dict(summary['mrr_gain']):+.4f}."]
        return Group(Text(heading), Table("", columns, rows, notes))


class _Texts:
    """The texts of a measurement.

    Attributes:
        numbers: of the documents that take part, in the corpus.
        documents: their texts, N.
        queries: of each document; None where it has none.
        asked: indices of the documents with a query, Q.
    """

    def __init__(self, corpus: "Corpus", settings: Retrieval) -> None:
        from contextwise.data.contexts import column_texts
        from contextwise.objectives.text import SentenceIndex, TokenText
        from contextwise.objectives.vocabulary import Vocabulary

        tokenizer = corpus.tokenizer()
        if tokenizer is None:
            raise DataError(f"the corpus {corpus.path} comes without a tokenizer, so its texts are not known")
        text = TokenText(tokenizer)
        count = min(settings.limit or len(corpus), len(corpus))
        sentences = None
        titles: list[str | None] = [None] * count
        if settings.query is None:
            sentences = SentenceIndex(corpus, Vocabulary(tokenizer, corpus.end_of_text), settings.language)
        else:
            titles = column_texts(corpus, settings.query)
        self.numbers: list[int] = []
        self.documents: list[str] = []
        self.queries: list[str | None] = []
        self._halves: list[list[str]] = []
        for i in range(count):
            ids, query = corpus.document(i), titles[i]
            if sentences is not None:
                end = int(sentences.of(i)[min(1, len(sentences.of(i)) - 1)])
                query, ids = text.read(ids[:end])[0], ids[end:]
            whole, starts = text.read(ids)
            middle = int(starts[len(ids) // 2])  # a character of two tokens is in the second half
            if whole.strip():
                self.numbers.append(i)
                self.documents.append(whole)
                self.queries.append(query)
                self._halves.append([whole[:middle], whole[middle:]])
        self.asked = [i for i, query in enumerate(self.queries) if query is not None and query.strip()]
        if len(self.documents) < 2 or len(self.asked) < 2:
            what = "a second sentence" if settings.query is None else f"a value in the column {settings.query!r}"
            raise DataError(
                f"retrieval needs two documents with {what} or more, but the split {corpus.split!r} of {corpus.path} has "
                f"{len(self.asked)}; choose a larger split"
            )
        self._corpus = corpus

    def half(self, number: int) -> str:
        """The first (2 i) or second (2 i + 1) half of document i."""
        return self._halves[number // 2][number % 2]

    def pairs(self, settings: Retrieval) -> np.ndarray:
        """Halves that are compared, (A, 3), or (A, 2) without topics: the first half of a document, then others' second halves.

        Column 0 is the first half of the document itself; the others are second halves, from the nearest to the farthest:
        its own, that of a document with a common topic, that of one without.
        """
        from contextwise.data.contexts import column_values

        usable = [i for i, (first, second) in enumerate(self._halves) if first.strip() and second.strip()]
        topics: list[set[str]] = [set() for _ in self.numbers]
        if settings.topic is not None:
            values = column_values(self._corpus, settings.topic)
            topics = [_topics(values[number]) for number in self.numbers]
            usable = [i for i in usable if topics[i]]
        members: dict[str, list[int]] = defaultdict(list)
        for i in usable:
            for topic in sorted(topics[i]):
                members[topic].append(i)
        draw = np.random.Generator(np.random.PCG64(settings.seed))
        rows: list[list[int]] = []
        for i in draw.permutation(usable).tolist() if usable else []:
            row = [2 * i, 2 * i + 1]
            if settings.topic is not None:
                near = sorted({j for topic in topics[i] for j in members[topic]} - {i})
                if not near:
                    continue
                row.append(2 * int(draw.choice(near)) + 1)
            for j in draw.choice(usable, size=_TRIES).tolist():
                if j != i and not topics[i] & topics[j]:
                    rows.append([*row, 2 * j + 1])
                    break
            if len(rows) == settings.anchors:
                break
        if len(rows) < 2:
            which = f", with and without a common value in {settings.topic!r}" if settings.topic else " of two tokens"
            raise DataError(
                f"the ordering needs several documents{which}, but the split {self._corpus.split!r} of "
                f"{self._corpus.path} has too few; choose a larger split"
                + (" or another topic" if settings.topic else "")
            )
        return np.array(rows)


def _topics(value: Any) -> set[str]:
    """The topics of a metadata value: its items, or itself."""
    items = value if isinstance(value, list) else [value]
    return {str(item) for item in items if item is not None and str(item).strip()}


def _embed(embedder: "Embedder", texts: list[str], what: str) -> np.ndarray:
    """Vectors of texts, (N, D)."""
    blocks = []
    with progress_bar(f"embed {what}", len(texts), "texts") as advance:
        for block in embedder.blocks(texts):
            interruption.check("the measurement was stopped")
            blocks.append(block)
            advance(len(block))
    return np.concatenate(blocks)


def ranks(queries_QD: np.ndarray, documents_ND: np.ndarray, target_Q: np.ndarray) -> np.ndarray:
    """The rank of each query's document by cosine, (Q,), from 1; documents with equal cosines share the mean of their ranks.

    Cosines are compared to six digits, the precision of their computation.
    """
    from contextwise.models.whitening import normalized

    documents_ND = normalized(documents_ND)
    rank_Q = np.empty(len(queries_QD))
    for start in range(0, len(queries_QD), _ROWS):
        part = slice(start, start + _ROWS)
        cosines = (normalized(queries_QD[part]) @ documents_ND.T).round(6)
        own = np.take_along_axis(cosines, target_Q[part, None], axis=1)
        rank_Q[part] = 1 + (cosines > own).sum(1) + ((cosines == own).sum(1) - 1) / 2
    return rank_Q


def ordering(vectors: dict[int, np.ndarray], pairs_AL: np.ndarray) -> Estimate:
    """Spearman's correlation of cosines with the order of the columns, with its interval over the rows.

    Args:
        vectors: of each half, (D,).
        pairs_AL: column 0 is compared with each further column, the nearest first.
    """
    from scipy import stats

    from contextwise.base.intervals import bootstrap_estimate, draw_counts
    from contextwise.models.whitening import normalized

    unit = {number: normalized(vector) for number, vector in vectors.items()}
    cosines_AL = np.array([[unit[row[0]] @ unit[other] for other in row[1:]] for row in pairs_AL.tolist()]).round(6)
    order_AL = np.broadcast_to(-np.arange(cosines_AL.shape[1]), cosines_AL.shape)

    def correlation(rows: Any) -> float:
        cosines = cosines_AL[rows].ravel()
        if np.ptp(cosines) == 0:  # equal vectors order nothing
            return 0.0
        return float(stats.spearmanr(cosines, order_AL[rows].ravel()).statistic)

    count = len(pairs_AL)
    counts_RA = np.concatenate(list(draw_counts(count))).astype(int)
    draws_R = np.array([correlation(np.repeat(np.arange(count), counts)) for counts in counts_RA])
    return bootstrap_estimate(correlation(np.arange(count)), draws_R, count)
