"""The losses of sentences, each scored on its own, with its contexts where the model takes any."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import exponential
from contextwise.base.intervals import estimate, ratios
from contextwise.base.progress import progress_bar
from contextwise.data.corpus import Corpus
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.measures.sentences.cache_effect import (
    BINS,
    bins_of,
    cache_effect,
    shares_of_types,
)
from contextwise.evaluation.measures.sentences.conditioning import (
    PROXY,
    ContextSets,
    Proxies,
    Texts,
    chosen_types,
    open_text_encoder,
    settings_of,
    trained_types,
)
from contextwise.evaluation.scoring.sentences import Sentences, dropped, score_rows, window_of
from contextwise.evaluation.scoring.windows import Scores, documents_table, totals
from contextwise.models.cue.encoding import EncodedTexts
from contextwise.objectives.sentence import ContextTexts
from contextwise.objectives.text import TokenText


@dataclass(frozen=True)
class Conditions:
    """With which contexts a model is scored.

    Attributes:
        types: names of the contexts; ``["proxy"]`` for proxies; empty: with none.
        trained: those of the model's training.
        dropped: share of the contexts that is withheld at random.
        takes_contexts: False for a model that is no CUE model.
    """

    types: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    dropped: float = 0.0
    takes_contexts: bool = False

    @classmethod
    def of(
        cls, subject: Subject, corpus: Corpus, asked: Sequence[str] | None, dropped: float
    ) -> "Conditions":
        """What is asked of a model, checked.

        Raises:
            ConfigError: the model takes no contexts, there are no such contexts, or none to drop.
        """
        if not subject.is_cue:
            for name, given in (("contexts", asked is not None), ("drop_contexts", dropped > 0)):
                if given:
                    raise ConfigError(
                        f"{name} is given, but {subject.source} is no CUE model and takes no contexts; leave it out"
                    )
            return cls()
        config = subject.config
        types = chosen_types(asked, config, corpus)
        if dropped and (not types or types == [PROXY]):
            raise ConfigError(
                f"drop_contexts is {dropped}, but {subject.source} is scored without contexts; leave it out"
            )
        return cls(types, trained_types(config), dropped, takes_contexts=True)

    @property
    def name(self) -> str | None:
        """How they differ from those of the training, in words; None where they do not."""
        parts = []
        if self.types != self.trained:
            parts.append("proxies" if self.types == [PROXY] else ", ".join(self.types) or "no contexts")
        if self.dropped:
            parts.append(f"{self.dropped:g} of the contexts dropped")
        return "; ".join(parts) or None


def score_sentences(
    subject: Subject, corpus: Corpus, conditions: Conditions, limit: int | None
) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """The summary and the tables of the sentences of a corpus, each scored on its own."""
    sentences = Sentences(corpus, limit, language_of(subject))
    scored = _score(subject, sentences, conditions)
    documents = _documents(corpus, sentences, scored.nats)
    summary = {
        "by_sentence": True,
        "condition": conditions.name,
        "sentences": _about(subject, sentences),
        **totals(documents),
        **_without_ends(documents),
        **scored.summary,
    }
    return summary, {"documents": documents, "tokens": _targets(sentences, scored)}


def _about(subject: Subject, sentences: Sentences) -> dict[str, Any]:
    """How many sentences there are, and how many are longer than the model."""
    lengths = sentences.rows.lengths
    return {
        "count": len(sentences),
        "language": sentences.index.language,
        "longest": int(lengths.max()) - 1,
        "positions": subject.positions,
        "in_windows": int((lengths > window_of(subject.model, sentences.rows)).sum()),
    }


def language_of(subject: Subject) -> str:
    """Whose rules cut a run's sentences; English for a model that is no run, or was trained on other things."""
    objective = subject.run.recipe().get("objective", {}) if subject.run else {}
    return str(objective.get("language", "en"))


@dataclass
class _Scored:
    """The nats of each target; of a CUE model also those of its sentence encoder, and with contexts the target's bin."""

    nats: np.ndarray
    visible: np.ndarray
    summary: dict[str, Any] = field(default_factory=dict)
    alone: np.ndarray | None = None
    bins: np.ndarray | None = None


def _score(subject: Subject, sentences: Sentences, conditions: Conditions) -> _Scored:
    """Score the sentences with their contexts; those of a CUE model also with its sentence encoder alone."""
    model: Any = subject.model
    sets, further, about = _contexts(model, subject.source, sentences, conditions)
    total = int(sentences.rows.lengths.sum()) * (2 if conditions.takes_contexts else 1)
    with progress_bar(f"score {subject.name}", total, "tokens") as advance:

        def scored(scorer: PreTrainedModel, given: Any) -> Scores:
            return score_rows(
                scorer,
                sentences.rows,
                given,
                batch_tokens=subject.batch_tokens,
                on_progress=advance,
            )

        scores = scored(model, further)
        result = _Scored(scores.nats, scores.visible)
        if not conditions.takes_contexts:
            return result
        result.alone = scored(model.sentence_encoder, None).nats
    result.summary = about | _against(sentences, result)
    if sets is not None:
        tokenizer = sentences.index.vocabulary.tokenizer
        assert tokenizer is not None  # the sentences needed it
        types = conditions.types
        result.bins, occurs_KN = bins_of(TokenText(tokenizer), sentences.rows, sets, len(types))
        articles_N = sentences.of_targets(sentences.articles)
        result.summary["cache_effect"] = {
            "bins": cache_effect(result.bins, articles_N, result.nats, result.alone),
            "types": shares_of_types(occurs_KN, result.bins, articles_N, types),
        }
    return result


def _contexts(
    model: Any, source: str, sentences: Sentences, conditions: Conditions
) -> tuple[Sequence[Texts] | None, Any, dict[str, Any]]:
    """The texts of each sentence's contexts, what gives them to the model, and what the summary says of them."""
    if not conditions.takes_contexts:
        return None, None, {}
    about: dict[str, Any] = {"types": conditions.types, "trained": conditions.trained}
    if conditions.types == [PROXY]:
        about["noise"] = model.config.proxy.noise
        return None, Proxies(sentences.rows.tokens, model).batch, {"contexts": about}
    if not conditions.types:
        return None, None, {"contexts": about}
    texts = ContextTexts(sentences.index, settings_of(conditions.types))
    order = [texts.types.index(name) for name in conditions.types]
    sets: Sequence[Texts] = [[texts.of(i)[k] for k in order] for i in range(len(sentences))]
    if conditions.dropped:
        sets = dropped(sets, conditions.dropped)
    encoded = EncodedTexts(open_text_encoder(model, source), Path(sentences.index.corpus.path) / "encoded")
    contexts = ContextSets(sets, encoded.vectors, model)
    missing = np.array([[text is None for text in one] for one in sets]).mean(axis=0)
    about |= {
        "dropped": conditions.dropped,
        "missing": dict(zip(conditions.types, missing.tolist(), strict=True)),
        "texts": len(contexts.texts),
        "truncated": encoded.truncated(encoded.rows(contexts.texts)) if contexts.texts else 0,
    }
    return sets, contexts.batch, {"contexts": about}


def _documents(corpus: Corpus, sentences: Sentences, nats_N: np.ndarray) -> pa.Table:
    """The rows of :func:`~evaluation.loss.documents_table`, with ``sentences`` and the nats of their ends."""
    counts = np.bincount(sentences.articles, minlength=sentences.documents)
    targets = sentences.article_sums(np.ones(len(nats_N))).astype(np.int64)
    table = documents_table(corpus, Scores(targets, nats_N, sentences.positions(), 0))
    table = table.append_column("sentences", pa.array(counts))
    ends = sentences.article_sums(np.where(sentences.rows.ends(), nats_N, 0.0))
    return table.append_column("end_nats", pa.array(ends))


def _without_ends(documents: pa.Table) -> dict[str, Any]:
    """Loss and perplexity of the tokens alone, the ends of the sentences left out."""
    columns = {name: documents[name].to_numpy() for name in ("nats", "end_nats", "tokens", "sentences")}
    tokens = columns["tokens"] - columns["sentences"]
    loss = ratios(columns["nats"] - columns["end_nats"], {"tokens": tokens})["tokens"]
    return {
        "loss_without_ends": loss.to_dict(),
        "perplexity_without_ends": loss.map(exponential).to_dict(),
    }


def _against(sentences: Sentences, result: _Scored) -> dict[str, Any]:
    """The sentence encoder's own loss on the same targets, and the difference to it, paired by article."""
    assert result.alone is not None
    own, alone = sentences.article_sums(result.nats), sentences.article_sums(result.alone)
    targets = sentences.article_sums(np.ones(len(result.nats)))
    loss = ratios(alone, {"tokens": targets})["tokens"]
    difference = estimate([(own - alone)[None]], targets)
    return {
        "sentence_encoder": {
            "loss": loss.to_dict(),
            "perplexity": loss.map(exponential).to_dict(),
            "difference": difference.to_dict(),
            "relative_perplexity": difference.map(lambda nats: exponential(nats) - 1).to_dict(),
        }
    }


def _targets(sentences: Sentences, result: _Scored) -> pa.Table:
    """One row a target: ``document``, ``sentence`` in it, ``position`` in that, ``visible`` tokens, ``nats``; of a CUE model
    also ``sentence_encoder_nats``, and with contexts the ``bin`` (:mod:`evaluation.sentences.cache_effect`).
    """
    columns: dict[str, Any] = {
        "document": sentences.of_targets(sentences.articles),
        "sentence": sentences.of_targets(sentences.numbers),
        "position": sentences.positions(),
        "visible": result.visible,
        "nats": result.nats,
    }
    if result.alone is not None:
        columns["sentence_encoder_nats"] = result.alone
    if result.bins is not None:
        columns["bin"] = pa.DictionaryArray.from_arrays(pa.array(result.bins), pa.array(BINS))
    return pa.table(columns)
