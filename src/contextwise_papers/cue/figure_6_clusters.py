"""Clusters of context embeddings, and the similarity of article texts within them (CUE, Section 7, Figure 6).

e_cue is that of each article's first sentence, which has no previous sentence: only metadata go into it. Beyond the figure, a
number: the mean cosine of the TF-IDF vectors of articles' texts within clusters and between them, and a permutation test. The
same for clusters of the mean of the text encoder's vectors, which shows what does not come from the training. F: words.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from scipy import sparse

from contextwise.data import Corpus
from contextwise.settings import ConfigError, DataError, not_installed
from contextwise_papers.claims import Claim, all_agree, significant
from contextwise_papers.cue.runs import OneRun, given_contexts, sentences_of, some
from contextwise_papers.item import Item, Outcome
from contextwise_papers.tables import Plot, point, table_of

_WORD = r"(?u)\b[^\W\d_]{2,}\b"
_AT_ONCE = 1024
FREQUENT = 0.5
"""Words in more than this share of the clusters are not salient."""


class ContextClusters(OneRun, name="context_clusters"):
    """Clusters of context embeddings, and whether the articles in them have like texts."""

    articles: int = Field(default=5000, ge=4, description="held-out articles, drawn at random where there are more")
    clusters: int = Field(default=20, ge=2)
    words: int = Field(default=5, ge=1, description="salient words of each cluster")
    permutations: int = Field(default=999, ge=99)
    title: str = Field(default="title", description="the column that names an article in the figure")

    def measure(self, item: Item, folder: Path) -> Outcome:
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError(f"clusters need scikit-learn, {not_installed('scikit-learn')}")
        runs = self.train(folder)
        corpus = self.held_out()
        first, *further = (run.path for run in runs.folders(self.run))
        vectors_AW, plain_AC, articles, contexts, left_out = self._embedded(corpus, first)
        if len(vectors_AW) <= self.clusters:
            raise DataError(
                f"{len(vectors_AW):,} articles of the split {self.split!r} have contexts, too few for {self.clusters} "
                "clusters; set a lower number of clusters"
            )
        labels = clustered(vectors_AW, self.clusters)
        tokenizer: Any = corpus.tokenizer()
        texts = [tokenizer.decode(corpus.document(i), skip_special_tokens=True) for i in articles]
        words_AF = word_vectors(texts)
        trained = [likeness(words_AF, labels, self.permutations)]
        for run in further:
            labels_of_run = clustered(self._embedded(corpus, run)[0], self.clusters)
            trained.append(likeness(words_AF, labels_of_run, self.permutations))
        baseline = likeness(words_AF, clustered(plain_AC, self.clusters), self.permutations)
        of_contexts, of_texts = (salient_words(part, labels, self.words) for part in (contexts, texts))
        clusters = list(zip(np.bincount(labels).tolist(), of_contexts, of_texts, strict=True))
        without = f"; {left_out:,} more have no context and are left out" if left_out else ""
        rows = [[i, size, *(", ".join(w) or "-" for w in words)] for i, (size, *words) in enumerate(clusters, 1)]
        title = (
            f"Clusters of {len(labels):,} articles of the split {self.split} by their contexts, seed {self.seeds[0]}"
        )
        tables = [
            table_of(title + without, ["cluster", "articles", "words of its contexts", "words of its texts"], rows)
        ]
        # Beside the clusters of e_cue those for which nothing was trained.
        of_seeds = {f"e_cue, seed {seed}": each for seed, each in zip(self.seeds, trained, strict=True)}
        likenesses = of_seeds | {"mean of the text encoder's vectors": baseline}
        rows = [[name, each.within, each.between, each.difference, each.p] for name, each in likenesses.items()]
        columns = ["clusters of", ("within", ".4f"), ("between", ".4f"), ("difference", "+.4f"), ("p", ".3f")]
        tables.append(table_of("Mean cosine of the articles' texts", columns, rows))
        keys = ("articles", "context_words", "text_words")
        figures = {
            "articles": len(labels),
            "left_out": left_out,
            "clusters": [dict(zip(keys, cluster, strict=True)) for cluster in clusters],
            "likeness": trained,
            "likeness_without_training": baseline,
        }
        titles = corpus.column(self.title) if self.title in corpus.columns else []
        names = [str((titles[i] if len(titles) else None) or f"article {i}") for i in articles]
        plot = drawn(in_plane(vectors_AW), labels, of_contexts, names)
        return Outcome(tables, [likeness_claim(trained).over_seeds(len(self.seeds))], figures, runs.paths, [plot])

    def _embedded(self, corpus: Corpus, run: Path) -> tuple[np.ndarray, np.ndarray, Any, list[str], int]:
        """Encode the contexts of articles' first sentences.

        e_cue, (A, W); the mean of the text encoder's vectors, (A, C); the articles, (A,); the texts of their contexts; and the
        number of articles without contexts.
        """
        subject, sentences = sentences_of(corpus, run)
        model: Any = subject.model
        first = some(sentences.starts[:-1][np.diff(sentences.starts) > 0], self.articles)
        contexts = given_contexts(subject, sentences, first)
        known = np.array([any(text is not None for text in texts) for texts in contexts.texts])
        if not known.any():
            raise DataError(
                f"no article of the split {self.split!r} has any of the contexts {', '.join(contexts.types)} at its first "
                "sentence; train the run on metadata columns"
            )
        numbers = np.flatnonzero(known)
        vectors, means = [], []
        for start in range(0, len(numbers), _AT_ONCE):
            batch = contexts.batch(numbers[start : start + _AT_ONCE])
            with torch.inference_mode():
                vectors.append(model.cue_vectors(**batch).cpu().numpy())
            total_BC = batch["contexts"].sum(1)  # of missing contexts zero
            means.append((total_BC / batch["context_mask"].sum(1, keepdim=True)).cpu().numpy())
        texts = [" ".join(text for text in contexts.texts[i] if text is not None) for i in numbers]
        left_out = int((~known).sum())
        return np.concatenate(vectors), np.concatenate(means), contexts.articles[known], texts, left_out


def clustered(vectors_AW: np.ndarray, clusters: int) -> np.ndarray:
    """(A,): the cluster of each vector, the largest is 0; by k-means, the best of ten starts."""
    from sklearn.cluster import KMeans

    labels = KMeans(clusters, n_init=10, random_state=0).fit_predict(vectors_AW)
    by_size = np.argsort(-np.bincount(labels), kind="stable")
    return np.argsort(by_size)[labels]


def in_plane(vectors_AW: np.ndarray) -> np.ndarray:
    """(A, 2): the vectors in the plane, by t-SNE."""
    from sklearn.manifold import TSNE

    neighbours = min(30.0, (len(vectors_AW) - 1) / 3)
    return TSNE(2, perplexity=neighbours, init="pca", random_state=0).fit_transform(vectors_AW)


def drawn(points_A2: np.ndarray, labels: np.ndarray, words: list[list[str]], titles: Sequence[str]) -> Plot:
    """One series a cluster, named by its words."""
    series = {
        f"{c + 1}: {', '.join(words[c][:3])}": [
            point(*(round(float(value), 2) for value in points_A2[i])) | {"text": titles[i]}
            for i in np.flatnonzero(labels == c).tolist()
        ]
        for c in range(len(words))
    }
    return Plot("Context embeddings in the plane", "t-SNE 1", "t-SNE 2", series, "points")


def salient_words(texts: Sequence[str], labels: np.ndarray, count: int) -> list[list[str]]:
    """The words with the highest TF-IDF of each cluster; the texts of a cluster are one document.

    Left out are English stop words, and words of more than half of the clusters. Nothing is left for a cluster without others.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    clusters = range(int(labels.max()) + 1)
    documents = [" \n ".join(texts[i] for i in np.flatnonzero(labels == c).tolist()) for c in clusters]
    weigher = TfidfVectorizer(stop_words="english", token_pattern=_WORD, max_df=FREQUENT)
    try:
        weights = weigher.fit_transform(documents).toarray()
    except ValueError:  # every word is a stop word, or is in too many clusters
        return [[] for _ in documents]
    names = weigher.get_feature_names_out()
    best = np.argsort(-weights, axis=1, kind="stable")[:, :count]
    return [[str(names[i]) for i in own if row[i] > 0] for own, row in zip(best, weights, strict=True)]


def word_vectors(texts: Sequence[str]) -> sparse.csr_matrix:
    """(A, F): the TF-IDF vector of each text, of length 1; of a text without words, zeros."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    weigher = TfidfVectorizer(stop_words="english", token_pattern=_WORD, sublinear_tf=True)
    try:
        return weigher.fit_transform(texts)
    except ValueError:
        raise DataError(
            "the articles' texts have no words to compare: none but English stop words, digits and signs"
        ) from None


@dataclass(frozen=True)
class Likeness:
    """Mean cosine of pairs of texts within clusters and between them; ``p``: how often chance gives as large a difference."""

    within: float
    between: float
    p: float
    permutations: int

    @property
    def difference(self) -> float:
        """Within minus between."""
        return self.within - self.between


def likeness(vectors_AF: sparse.csr_matrix, labels: np.ndarray, permutations: int) -> Likeness:
    """Whether vectors are more alike within clusters than between, by a permutation test over the labels.

    With S_c the sum of a cluster's vectors, the cosines of its pairs add up to ``|S_c|² - sum |x|²``, so no matrix of pairs is
    needed. The sizes of the clusters, and so the numbers of pairs, stay what they are under permutation.
    """
    sizes = np.bincount(labels)
    pairs = int((sizes * (sizes - 1)).sum())
    others = len(labels) * (len(labels) - 1) - pairs
    if not pairs or not others:
        what = "no cluster has two articles" if not pairs else "all articles are in one cluster"
        raise DataError(f"texts within clusters and between them cannot be compared: {what}")
    squares = float(vectors_AF.multiply(vectors_AF).sum())
    total = float(np.square(vectors_AF.sum(axis=0)).sum()) - squares
    ones = np.ones(len(labels))

    def within(drawn: np.ndarray) -> float:
        membership = sparse.csr_matrix((ones, (drawn, np.arange(len(drawn)))), shape=(len(sizes), len(drawn)))
        sums_CF = membership @ vectors_AF
        return (float(sums_CF.multiply(sums_CF).sum()) - squares) / pairs

    own = within(labels)
    draw = np.random.default_rng(0)
    chance = np.array([within(draw.permutation(labels)) for _ in range(permutations)])
    p = (1 + int((chance >= own - 1e-12).sum())) / (1 + permutations)
    return Likeness(own, (total - own * pairs) / others, p, permutations)


def likeness_claim(trained: Sequence[Likeness]) -> Claim:
    """Whether chance rarely gives such a difference, with each seed."""
    text = "texts of articles are more alike within clusters of their contexts than between them"
    evidence = (
        f"mean cosine {each.within:.3f} within and {each.between:.3f} between, p {each.p:.3f} of "
        f"{each.permutations:,} permutations"
        for each in trained
    )
    verdict = all_agree((significant(each.difference, each.p) for each in trained), "seeds")
    return Claim.of(text, verdict, "; ".join(evidence))
