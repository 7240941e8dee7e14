"""Losses of sentences, each scored on its own, with its contexts where the model takes any, and their tables.

``[end-of-text] w1 ... wn`` is read and ``w1 ... wn [end-of-text]`` predicted: without its end as a target, a model could lower
its loss by never ending a sentence. A sentence with more targets than the model has positions is scored in overlapping windows,
so that models with different positions are compared on the same targets. Intervals and differences are drawn over articles.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from rich.console import Group
from rich.text import Text
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from contextwise.base.estimates import exponential, number
from contextwise.data import Corpus
from contextwise.evaluation.kernel.subject import DEFAULT_BATCH_TOKENS
from contextwise.evaluation.measures.loss import MEASURES, evaluation_table, lost_note
from contextwise.evaluation.scoring.scores import Scores, documents_table, numbered, totals
from contextwise.measures import Subject, Work, positions, score_documents
from contextwise.models import IGNORED
from contextwise.objectives import Vocabulary, generator
from contextwise.report import Column, Table, progress_bar, written
from contextwise.settings import ConfigError, DataError, did_you_mean
from contextwise.stats import Estimate, estimate, ratios
from contextwise_papers.cue.contexts import ContextTexts, Further, Texts, encoded_sets, trained_types
from contextwise_papers.cue.sentences import cache_effect
from contextwise_papers.cue.settings import PREVIOUS
from contextwise_papers.objectives.text import SentenceIndex, TokenText

PROXY = "proxy"
"""In place of contexts: the input of a proxy-trained model's training."""


@dataclass(frozen=True)
class Rows:
    """Sentences (tokens without their ends) in the form of documents, for :func:`score_documents`."""

    tokens: Sequence[np.ndarray]
    end_of_text: int

    @cached_property
    def lengths(self) -> np.ndarray:
        """(S,) number of targets of each sentence: its tokens and its end."""
        return np.array([len(tokens) + 1 for tokens in self.tokens], dtype=np.int64)

    def document(self, index: int, /) -> np.ndarray:
        """Token ids of the targets of a sentence."""
        return np.append(self.tokens[index], self.end_of_text)

    def ends(self) -> np.ndarray:
        """(N,) bool: whether each target is the end of a sentence."""
        ends = np.zeros(int(self.lengths.sum()), dtype=bool)
        ends[np.cumsum(self.lengths) - 1] = True
        return ends

    def sums(self, values_N: np.ndarray) -> np.ndarray:
        """(S,) float64: the sum over each sentence's targets."""
        sentences = np.repeat(np.arange(len(self.tokens)), self.lengths)
        return np.bincount(sentences, weights=values_N, minlength=len(self.tokens))


def score_rows(
    model: PreTrainedModel,
    rows: Rows,
    further: Further | None = None,
    *,
    batch_tokens: int | None = None,
    **options: Any,
) -> Scores:
    """Score every target of the sentences; ``nats`` (N,) are in the order of the sentences.

    Without ``further`` inputs (:meth:`.ContextSets.on`) a CUE model has the empty set of contexts. ``options`` are those of
    :func:`~contextwise.evaluation.scoring.windows.score_documents`.
    """
    window = window_of(model, rows)
    options |= {"batch_tokens": batch_tokens or DEFAULT_BATCH_TOKENS, "further": further}
    return score_documents(model, rows, window, max(1, window // 2), **options)


def window_of(model: PreTrainedModel, rows: Rows) -> int:
    """Window for scoring: the length of the longest sentence, limited to the model's positions."""
    return min(int(rows.lengths.max()), positions(model.config) or sys.maxsize)


class Sentences:
    """Sentences of the first documents of a corpus, in order: tokens (``rows``), document and number in it, (S,) each.

    ``index`` has the sentences of the whole split.
    """

    def __init__(self, corpus: Corpus, limit: int | None = None, language: str = "en") -> None:
        vocabulary = Vocabulary(corpus.tokenizer(), corpus.end_of_text)
        self.index = SentenceIndex(corpus, vocabulary.tokenizer, language)
        self.documents = min(len(corpus), limit or len(corpus))
        counts = np.diff(self.index.starts)[: self.documents]
        self.articles = np.repeat(np.arange(self.documents), counts)
        if not len(self.articles):
            raise DataError(
                f"the split {corpus.split!r} of {corpus.path} has no sentence to score: the first {self.documents:,} of its "
                "documents are empty or white space"
            )
        self.numbers = numbered(counts)
        indices = zip(self.articles.tolist(), self.numbers.tolist(), strict=True)
        tokens = [self.index.read(document, number, number + 1) for document, number in indices]
        self.rows = Rows(tokens, vocabulary.end("sentence"))

    def __len__(self) -> int:
        return len(self.articles)

    def article_sums(self, values_N: np.ndarray) -> np.ndarray:
        """(A,) float64: the sum over the targets of each article."""
        return np.bincount(self.articles, weights=self.rows.sums(values_N), minlength=self.documents)

    def positions(self) -> np.ndarray:
        """(N,) int32: the position of each target in its sentence, from 0."""
        return numbered(self.rows.lengths).astype(np.int32)

    def of_targets(self, values_S: np.ndarray) -> np.ndarray:
        """(N,) int32: the values of the sentences, repeated for each of their targets."""
        return np.repeat(values_S, self.rows.lengths).astype(np.int32)


def language_of(subject: Subject) -> str:
    """Language whose rules split the text of a run's sentences; English for a model that is no run."""
    objective = subject.run.recipe().get("objective", {}) if subject.run else {}
    return str(objective.get("language", "en"))


def dropped(sets: Sequence[Texts], probability: float, seed: int = 0) -> list[Texts]:
    """Drop each context with a probability; the draws of a sentence depend only on (seed, its number)."""
    results: list[Texts] = []
    for i, texts in enumerate(sets):
        draws = generator(seed, 0, i, "drop_contexts").random(len(texts))
        kept = zip(texts, draws >= probability, strict=True)
        results.append([text if keep else None for text, keep in kept])
    return results


def proxies(sentences: Sequence[np.ndarray], model: Any, seed: int = 0) -> Further:
    """The proxy of each sentence, made of the words that are to be predicted: an oracle (CUE, Table 5, row 2).

    Returns a function that gives ``proxy_targets`` (B, T) and ``proxy_noise`` (B, P), standard normal, of a batch; the noise
    depends on (seed, number of the sentence).
    """
    width = model.config.proxy.autoencoder.code_width

    def batch(numbers: np.ndarray) -> dict[str, torch.Tensor]:
        tokens = [torch.from_numpy(sentences[number].astype(np.int64)) for number in numbers]
        draws = [generator(seed, 0, int(number), "proxy_noise") for number in numbers]
        noise = np.stack([draw.standard_normal(width, dtype=np.float32) for draw in draws])
        targets = pad_sequence(tokens, batch_first=True, padding_value=IGNORED)
        noise_BP = torch.from_numpy(noise).to(model.device)
        return {"proxy_targets": targets.to(model.device), "proxy_noise": noise_BP}

    return batch


def chosen_types(subject: Subject, corpus: Corpus, requested: Sequence[str] | None, drop: float) -> list[str]:
    """Names of the contexts to score with: the requested ones, or those of the training; none for a model that takes none.

    ``proxy`` alone stands for the proxies of a model that was trained on them. Types that the model was not trained with are
    allowed where the corpus has them: the text encoder reads any text, and what that is worth without adaptation is a
    separate question (CUE, Table 5, rows 5 and 9). Raises ConfigError for contexts that do not exist here.
    """
    if not subject.spec.takes_contexts:
        for name, given in (("contexts", requested is not None), ("drop_contexts", drop > 0)):
            if given:
                raise ConfigError(
                    f"{name} is given, but {subject.source} is no CUE model and takes no contexts; leave it out"
                )
        return []
    config, trained = subject.config, trained_types(subject.config)
    types = trained if requested is None else list(requested)
    if requested is not None and not (types == [PROXY] and config.proxy is not None):
        if requested and config.context_encoder is None:
            raise ConfigError(
                f"contexts names {requested[0]!r}, but the model has no context encoder; leave `contexts` out"
            )
        others = [name for name in corpus.columns if name != "document_hash"]
        known = list(dict.fromkeys([*trained, *others, PREVIOUS]))
        for name in requested:
            if name not in known and name.partition(".")[0] not in known:
                near = did_you_mean(name, known)
                raise ConfigError(f"contexts names {name!r}, which is no context here; {near}")
            if types.count(name) > 1:
                raise ConfigError(f"contexts names {name!r} twice; name it once")
        types = sorted(types, key=known.index) if set(types) <= set(known) else types
    if drop and types in ([], [PROXY]):
        raise ConfigError(f"drop_contexts is {drop}, but {subject.source} is scored without contexts; leave it out")
    return types


def score_sentences(
    subject: Subject, corpus: Corpus, types: list[str], drop: float, limit: int | None, work: Work
) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """The summary and the tables of the sentences of a corpus, each scored on its own with contexts of some types.

    The tables: ``documents`` (:func:`documents_table`, ``sentences`` and ``end_nats``) and ``tokens``: ``document``,
    ``sentence`` in it, ``position`` in that, ``visible`` tokens and ``nats`` of each target; of a CUE model also
    ``sentence_encoder_nats``, and with contexts the ``bin`` (:mod:`.cache_effect`).
    """
    model: Any = subject.model
    sentences = Sentences(corpus, limit, language_of(subject))
    sets, further, about = _contexts(subject, sentences, types, drop)
    total = int(sentences.rows.lengths.sum()) * (2 if subject.spec.takes_contexts else 1)
    with progress_bar(f"score {subject.name}", total, "tokens") as advance:

        def score(scorer: PreTrainedModel, given: Further | None, part: str) -> Scores:
            options: dict[str, Any] = {"on_progress": advance, "work": work, "part": part}
            return score_rows(scorer, sentences.rows, given, batch_tokens=subject.batch_tokens, **options)

        scores = score(model, further, "scores")
        # A CUE model is also compared with its sentence encoder alone.
        alone = score(model.sentence_encoder, None, "alone").nats if subject.spec.takes_contexts else None
    articles_N = sentences.of_targets(sentences.articles)
    columns: dict[str, Any] = {
        "document": articles_N,
        "sentence": sentences.of_targets(sentences.numbers),
        "position": sentences.positions(),
        "visible": scores.visible,
        "nats": scores.nats,
    }
    if alone is not None:
        columns["sentence_encoder_nats"] = alone
        about["sentence_encoder"] = _difference(sentences, scores.nats, alone)
    if alone is not None and sets is not None:
        bins, occurs_KN = cache_effect.bins_of(TokenText(sentences.index.tokenizer), sentences.rows.tokens, sets)
        columns["bin"] = pa.DictionaryArray.from_arrays(pa.array(bins), pa.array(cache_effect.BINS))
        about["cache_effect"] = {
            "bins": cache_effect.cache_effect(bins, articles_N, scores.nats[None], alone[None]),
            "types": cache_effect.shares_of_types(occurs_KN, bins, articles_N, types),
        }
    documents = _documents(corpus, sentences, scores.nats)
    lengths = sentences.rows.lengths
    summary = {
        "condition": _condition(types, trained_types(subject.config), drop),
        "sentences": {
            "count": len(sentences),
            "language": sentences.index.language,
            "longest": int(lengths.max()) - 1,
            "positions": subject.positions,
            "in_windows": int((lengths > window_of(model, sentences.rows)).sum()),
        },
        **totals(documents),
        **_without_ends(documents),
        **about,
    }
    return summary, {"documents": documents, "tokens": pa.table(columns)}


def _condition(types: list[str], trained: list[str], drop: float) -> str | None:
    """How the contexts differ from those of the training, in words; None where they do not."""
    parts = []
    if types != trained:
        parts.append("proxies" if types == [PROXY] else ", ".join(types) or "no contexts")
    if drop:
        parts.append(f"{drop:g} of the contexts dropped")
    return "; ".join(parts) or None


def _contexts(
    subject: Subject, sentences: Sentences, types: list[str], drop: float
) -> tuple[Sequence[Texts] | None, Further | None, dict[str, Any]]:
    """The texts of each sentence's contexts, the further inputs of the model, and their part of the summary."""
    if not subject.spec.takes_contexts:
        return None, None, {}
    model: Any = subject.model
    about: dict[str, Any] = {"types": types, "trained": trained_types(subject.config)}
    if types == [PROXY]:
        about["noise"] = model.config.proxy.noise
        return None, proxies(sentences.rows.tokens, model), {"contexts": about}
    if not types:
        return None, None, {"contexts": about}
    sets: Sequence[Texts] = list(map(ContextTexts(sentences.index, types).of, range(len(sentences))))
    if drop:
        sets = dropped(sets, drop)
    contexts = encoded_sets(model, subject.source, sets, sentences.index.corpus)
    missing = np.array([[text is None for text in texts] for texts in sets]).mean(axis=0)
    about |= {
        "dropped": drop,
        "missing": dict(zip(types, missing.tolist(), strict=True)),
        "texts": contexts.texts,
        "truncated": contexts.truncated,
    }
    return sets, contexts.on(model), {"contexts": about}


def _documents(corpus: Corpus, sentences: Sentences, nats_N: np.ndarray) -> pa.Table:
    counts = np.bincount(sentences.articles, minlength=sentences.documents)
    targets = sentences.article_sums(np.ones(len(nats_N))).astype(np.int64)
    table = documents_table(corpus, Scores(targets, nats_N, sentences.positions(), 0))
    table = table.append_column("sentences", pa.array(counts))
    end_nats = sentences.article_sums(np.where(sentences.rows.ends(), nats_N, 0.0))
    return table.append_column("end_nats", pa.array(end_nats))


def _without_ends(documents: pa.Table) -> dict[str, Any]:
    """Loss and perplexity of the tokens alone, without the ends of the sentences."""
    nats, end_nats, tokens, ends = (documents[name].to_numpy() for name in ("nats", "end_nats", "tokens", "sentences"))
    loss = ratios(nats - end_nats, {"tokens": tokens - ends})["tokens"]
    return {"loss_without_ends": loss.to_dict(), "perplexity_without_ends": loss.map(exponential).to_dict()}


def _difference(sentences: Sentences, own_N: np.ndarray, alone_N: np.ndarray) -> dict[str, Any]:
    """The sentence encoder's own loss on the same targets, and the difference to it, paired by article."""
    own, alone = sentences.article_sums(own_N), sentences.article_sums(alone_N)
    targets = sentences.article_sums(np.ones(len(own_N)))
    loss = ratios(alone, {"tokens": targets})["tokens"]
    difference = estimate([(own - alone)[None]], targets)
    return {
        "loss": loss.to_dict(),
        "perplexity": loss.map(exponential).to_dict(),
        "difference": difference.to_dict(),
        "relative_perplexity": difference.map(lambda nats: exponential(nats) - 1).to_dict(),
    }


def sentences_tables(summary: dict[str, Any]) -> Group:
    """The heading and the tables for the terminal, in 80 columns."""
    about = summary["sentences"]
    heading = (
        f"{summary['model']} on {summary['label']}: {about['count']:,} sentences of {summary['documents']:,} documents, each "
        f"on its own; {summary['tokens']:,} tokens, the end-of-text that ends each sentence among them. "
        + _contexts_sentence(summary)
    )
    if about["in_windows"]:
        heading += (
            f" {about['in_windows']:,} sentences are longer than the model's {about['positions']:,} positions; they were "
            "scored in overlapping windows."
        )
    heading += lost_note(summary)
    if summary["documents"] == 1:
        heading += " One document allows no interval."
    without_ends = {f"{name}_without_ends": f"{name} without ends" for name in ("loss", "perplexity")}
    parts: list[Any] = [Text(heading), evaluation_table(summary, MEASURES | without_ends)]
    if alone := summary.get("sentence_encoder"):
        gain, loss = Estimate.from_dict(alone["relative_perplexity"]), alone["difference"]
        parts.append(
            Text(
                f"Its sentence encoder alone: perplexity {number(alone['perplexity']['value'])}. Relative to that: "
                f"{gain:change}, {written(loss['value'], '+.4f')} nats per token."
            )
        )
    if effect := summary.get("cache_effect"):
        shares = sorted(effect["types"].items(), key=lambda item: -item[1]["value"])
        known = ", ".join(f"{name} {share['value']:.1%}" for name, share in shares)
        parts += [_cache_table(effect["bins"]), Text(f"Tokens whose word occurs in the context: {known}.")]
    return Group(*parts)


def _contexts_sentence(summary: dict[str, Any]) -> str:
    contexts = summary.get("contexts")
    if contexts is None:
        return "The model takes no contexts."
    if contexts["types"] == [PROXY]:
        return f"In place of contexts: proxies of the sentences' own words, noise {contexts['noise']:g} (an oracle)."
    if not contexts["types"]:
        return "No contexts."
    missing = contexts["missing"]
    given = [f"{name} ({1 - missing[name]:.0%})" for name in contexts["types"]]
    words = f"Contexts (share of the sentences that have them): {', '.join(given)}."
    if contexts["dropped"]:
        words += f" {contexts['dropped']:.0%} of them withheld at random."
    foreign = [name for name in contexts["types"] if name not in contexts["trained"]]
    if foreign:
        words += f" Not trained with: {', '.join(foreign)}."
    if contexts["truncated"]:
        were = "was" if contexts["truncated"] == 1 else "were"
        words += (
            f" {contexts['truncated']:,} of {contexts['texts']:,} texts {were} too long for the text encoder, and cut."
        )
    return words


def _cache_table(bins: dict[str, Any]) -> Table:
    """The gain for tokens of words that occur in the contexts, and for others."""
    rows: list[list[Any]] = []
    for name in (*cache_effect.BINS, cache_effect.ALL):
        if row := bins.get(name):
            share = None if row["share"] is None else row["share"]["value"]
            estimates = (Estimate.from_dict(row[key]) for key in ("log_likelihood_gain", "likelihood_gain"))
            rows.append([name, share, row["loss_without"], row["loss_with"], *estimates])
    shares = [Column("of all\ntokens", "percent")]
    losses = [Column(title, "estimate", ".4f") for title in ("nats\nalone", "nats\nwith")]
    titles = ("gain in\nlog-likelihood", "gain in\nlikelihood")
    gains = [Column(title, "difference", "change", interval="below") for title in titles]
    title = "gain over the sentence encoder alone (contexts and decoder together), by word"
    return Table(title, ["", *shares, *losses, *gains], rows)
