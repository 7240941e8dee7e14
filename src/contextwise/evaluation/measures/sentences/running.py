"""Evaluate a sentence model or a CUE model, sentence by sentence, and write the evaluation beside its run."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel

from contextwise.base.environment import describe_environment
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import CONFIDENCE, exponential
from contextwise.base.intervals import RESAMPLES, estimate, ratios
from contextwise.base.progress import progress_bar
from contextwise.base.runs import RunFolder
from contextwise.data.corpus import Corpus
from contextwise.evaluation.measures.loss import (
    checked_destination,
    documents_table,
    is_run,
    label,
    open_model,
    positions,
    subject,
    totals,
)
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
    is_cue,
    open_text_encoder,
    settings_of,
    trained_types,
)
from contextwise.evaluation.results import Evaluation, write_evaluation
from contextwise.evaluation.scoring.sentences import Sentences, dropped, score_rows, window_of
from contextwise.evaluation.scoring.windows import Scores
from contextwise.models.cue.encoding import EncodedTexts
from contextwise.models.loading import load_config
from contextwise.objectives.contexts import ContextTexts
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
    def of(cls, source: str, corpus: Corpus, asked: Sequence[str] | None, dropped: float) -> "Conditions":
        """What is asked of a model, checked.

        Raises:
            ConfigError: the model takes no contexts, there are no such contexts, or none to drop.
        """
        if not is_cue(source):
            for name, given in (("--contexts", asked is not None), ("--drop-contexts", dropped > 0)):
                if given:
                    raise ConfigError(
                        f"{name} is given, but {source} is no CUE model and takes no contexts; leave it out"
                    )
            return cls()
        config = load_config(source)
        types = chosen_types(asked, config, corpus)
        if dropped and (not types or types == [PROXY]):
            raise ConfigError(
                f"--drop-contexts is {dropped}, but {source} is scored without contexts; leave it out"
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

    @property
    def suffix(self) -> str:
        """The same, for the name of a folder."""
        names = [re.sub(r"[^\w.]+", "_", name) for name in self.types]
        types = "" if self.types == self.trained else "-" + ("-".join(names) or "no-contexts")
        return types + (f"-dropped-{self.dropped:g}" if self.dropped else "")


def sentence_label(corpus: Corpus, conditions: Conditions | None = None) -> str:
    """Name of an evaluation sentence by sentence."""
    return f"{label(corpus)}-sentences{conditions.suffix if conditions else ''}"


def evaluate_sentences(
    source: str | Path,
    corpus: Corpus,
    *,
    contexts: Sequence[str] | None = None,
    drop_contexts: float = 0.0,
    limit_documents: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Score every sentence of a corpus on its own, with its contexts where the model takes any.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        corpus: the documents (one split of a corpus).
        contexts: for a CUE model, names of the contexts to score with: metadata columns and ``previous_sentence``; ``[]``:
            none; ``["proxy"]``: the proxies of a model that was trained on them. By default those of its training.
        drop_contexts: withhold each context of each sentence with this probability, drawn by the sentence's number.
        limit_documents, batch_tokens, dtype, device, should_stop: as
            :func:`~contextwise.evaluation.measures.loss.evaluate_model` takes them.
        out: where to write; by default ``CORPUS-SPLIT-sentences`` where the run's evaluations are, with the contexts in the
            name if they are not those of the training.

    Raises:
        ConfigError: an option is out of range, there are no such contexts, or ``out`` holds something else.
        DataError: corpus and model do not fit, or there is nothing to score.
        CheckpointError: there is no such model, or its text encoder is another by now.
        Interrupted: ``should_stop`` said so; nothing was written.
    """
    started = time.monotonic()
    source = str(source)
    conditions = Conditions.of(source, corpus, contexts, drop_contexts)
    out = checked_destination(out, source, corpus, sentence_label(corpus, conditions))
    model = open_model(source, corpus, dtype, device)
    sentences = Sentences(corpus, limit_documents, language_of(source))
    found = _score(model, source, sentences, conditions, batch_tokens, should_stop)
    documents = _documents(corpus, sentences, found.nats)
    summary = {
        **subject(source, model, corpus),
        "label": sentence_label(corpus, conditions),
        "by_sentence": True,
        "condition": conditions.name,
        "sentences": _about(model, sentences),
        **totals(documents),
        **_without_ends(documents),
        **found.summary,
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    return write_evaluation(out, summary, documents, _targets(sentences, found))


def _about(model: PreTrainedModel, sentences: Sentences) -> dict[str, Any]:
    """How many sentences there are, and how many are longer than the model."""
    lengths = sentences.rows.lengths
    return {
        "count": len(sentences),
        "language": sentences.index.language,
        "longest": int(lengths.max()) - 1,
        "positions": positions(model),
        "in_windows": int((lengths > window_of(model, sentences.rows)).sum()),
    }


def language_of(source: str) -> str:
    """Whose rules cut a run's sentences; English for a model that is no run, or was trained on other things."""
    objective = RunFolder(source).recipe().get("objective", {}) if is_run(source) else {}
    return str(objective.get("language", "en"))


@dataclass
class _Found:
    """What a scoring pass found: each target's nats; of a CUE model also its sentence encoder's, and with contexts its bin."""

    nats: np.ndarray
    visible: np.ndarray
    summary: dict[str, Any] = field(default_factory=dict)
    alone: np.ndarray | None = None
    bins: np.ndarray | None = None


def _score(
    model: Any,
    source: str,
    sentences: Sentences,
    conditions: Conditions,
    batch_tokens: int | None,
    should_stop: Callable[[], bool] | None,
) -> _Found:
    """Score the sentences with their contexts; those of a CUE model also with its sentence encoder alone."""
    sets, further, about = _contexts(model, source, sentences, conditions)
    total = int(sentences.rows.lengths.sum()) * (2 if conditions.takes_contexts else 1)
    with progress_bar(f"evaluate {Path(source).name}", total, "tokens") as advance:

        def scored(scorer: PreTrainedModel, given: Any) -> Scores:
            return score_rows(
                scorer,
                sentences.rows,
                given,
                batch_tokens=batch_tokens,
                on_progress=advance,
                should_stop=should_stop,
            )

        scores = scored(model, further)
        found = _Found(scores.nats, scores.visible)
        if not conditions.takes_contexts:
            return found
        found.alone = scored(model.sentence_encoder, None).nats
    found.summary = about | _against(sentences, found)
    if sets is not None:
        tokenizer = sentences.index.vocabulary.tokenizer
        assert tokenizer is not None  # the sentences needed it
        types = conditions.types
        found.bins, occurs_KN = bins_of(TokenText(tokenizer), sentences.rows, sets, len(types))
        articles_N = sentences.of_targets(sentences.articles)
        found.summary["cache_effect"] = {
            "bins": cache_effect(found.bins, articles_N, found.nats, found.alone),
            "types": shares_of_types(occurs_KN, found.bins, articles_N, types),
        }
    return found


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


def _against(sentences: Sentences, found: _Found) -> dict[str, Any]:
    """The sentence encoder's own loss on the same targets, and the difference to it, paired by article."""
    assert found.alone is not None
    own, alone = sentences.article_sums(found.nats), sentences.article_sums(found.alone)
    targets = sentences.article_sums(np.ones(len(found.nats)))
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


def _targets(sentences: Sentences, found: _Found) -> pa.Table:
    """One row a target: ``document``, ``sentence`` in it, ``position`` in that, ``visible`` tokens, ``nats``; of a CUE model
    also ``sentence_encoder_nats``, and with contexts the ``bin`` (:mod:`evaluation.sentences.cache_effect`).
    """
    columns: dict[str, Any] = {
        "document": sentences.of_targets(sentences.articles),
        "sentence": sentences.of_targets(sentences.numbers),
        "position": sentences.positions(),
        "visible": found.visible,
        "nats": found.nats,
    }
    if found.alone is not None:
        columns["sentence_encoder_nats"] = found.alone
    if found.bins is not None:
        columns["bin"] = pa.DictionaryArray.from_arrays(pa.array(found.bins), pa.array(BINS))
    return pa.table(columns)
