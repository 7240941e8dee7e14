"""Gain of a sentence's contexts for words that occur in them, and for other words (CUE, Section 7).

A *word* is a run of letters and digits, or one other visible sign (a comma, a quotation mark); upper and lower case are the
same. All tokens of a word share its bin. Tokens of nothing but white space, and the end of each sentence, are in neither.
All values are ratios of sums over articles; their intervals are t-intervals over articles.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from contextwise.base.estimates import exponential
from contextwise.measures import Evaluation
from contextwise.settings import DataError
from contextwise.stats import ratios, with_seeds
from contextwise_papers.cue.contexts import Texts
from contextwise_papers.objectives.text import TokenText, next_visible, visible_positions

_WORD = re.compile(r"\w+|[^\w\s]")
BINS = ("in contexts", "not in contexts", "white space", "end of text")
IN, NOT_IN, SPACE, END = range(len(BINS))
ALL = "all but the ends"


def words_of(text: str) -> list[tuple[int, str]]:
    """The words of a text, in lower case: the first character's index, and the word."""
    return [(match.start(), match.group().casefold()) for match in _WORD.finditer(text)]


@lru_cache(maxsize=65536)
def _vocabulary_of(text: str) -> frozenset[str]:
    return frozenset(word for _, word in words_of(text))


def occurrences(text: TokenText, ids: np.ndarray, contexts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of a sentence (T,) are of a word that occurs in each context, (K, T) bool; and which of any, (T,) bool."""
    written, starts = text.read(ids)
    visible = next_visible(written)
    places = visible_positions(starts, visible)
    words = words_of(written)
    # The word that a token's first visible character is in: the last one that begins there or before.
    starts_W = np.array([start for start, _ in words], dtype=np.int64)
    word_T = np.searchsorted(starts_W, places, side="right") - 1
    visible_T = (visible[places] == places) & (places < len(written)) & (word_T >= 0)
    occurs_KT = np.zeros((len(contexts), len(ids)), dtype=bool)
    for k, context in enumerate(contexts):
        if context is not None:
            known = _vocabulary_of(context)
            occurs_W = np.array([word in known for _, word in words], dtype=bool)
            occurs_KT[k, visible_T] = occurs_W[word_T[visible_T]]
    return occurs_KT, visible_T


def bins_of(text: TokenText, sentences: Iterable[np.ndarray], sets: Iterable[Texts]) -> tuple[np.ndarray, np.ndarray]:
    """The bin of each target of the sentences, (N,) int8 (numbers of :data:`BINS`), and in which contexts it occurs, (K, N).

    ``sentences`` are the tokens of each, without its end.
    """
    bins, occurs = [], []
    for tokens, contexts in zip(sentences, sets, strict=True):
        occurs_KT, visible_T = occurrences(text, tokens, contexts)
        bin_T = np.where(visible_T, np.where(occurs_KT.any(axis=0), IN, NOT_IN), SPACE)
        bins.append(np.append(bin_T, END))
        occurs.append(np.pad(occurs_KT, ((0, 0), (0, 1))))
    return np.concatenate(bins).astype(np.int8), np.concatenate(occurs, axis=1)


def cache_effect(
    bins_N: np.ndarray, articles_N: np.ndarray, with_SN: np.ndarray, without_SN: np.ndarray
) -> dict[str, Any]:
    """The gain by contexts, for tokens of words that occur in them and for others, with intervals over articles and seeds.

    By bin (``all but the ends`` among them): ``share`` of all tokens, ends not counted; losses and their difference ``gain``,
    nats per token; ``log_likelihood_gain``, relative, as the paper words it; and ``likelihood_gain``, exp(gain) - 1: only so do
    its 74% and 26% fit its perplexities (docs/papers/cue.md). A bin without tokens is left out.
    """
    tokens_A = np.bincount(articles_N, weights=bins_N != END)
    masks = {name: bins_N == number for number, name in enumerate(BINS)} | {ALL: bins_N != END}
    effect = {}
    for name, mask_N in masks.items():
        if not mask_N.any():
            continue
        own_A = np.bincount(articles_N, weights=mask_N)
        with_SA, without_SA = (
            np.stack([np.bincount(articles_N, weights=nats_N * mask_N) for nats_N in nats_SN])
            for nats_SN in (with_SN, without_SN)
        )
        with_A, without_A = with_SA.mean(axis=0), without_SA.mean(axis=0)
        gains_S = (without_SA - with_SA).sum(axis=1)
        of_seeds = {"gain": gains_S / own_A.sum(), "log_likelihood_gain": gains_S / without_SA.sum(axis=1)}
        over_articles = ratios(without_A - with_A, {"gain": own_A, "log_likelihood_gain": without_A})
        gains = {name: with_seeds(gain, of_seeds[name]) for name, gain in over_articles.items()}
        effect[name] = {
            "share": None if name == BINS[END] else ratios(own_A, {"share": tokens_A})["share"].to_dict(),
            "tokens": int(own_A.sum()),
            "loss_with": float(with_A.sum() / own_A.sum()),
            "loss_without": float(without_A.sum() / own_A.sum()),
            "gain": gains["gain"].to_dict(),
            "log_likelihood_gain": gains["log_likelihood_gain"].to_dict(),
            "likelihood_gain": gains["gain"].map(lambda gain: exponential(gain) - 1).to_dict(),
        }
    return effect


def shares_of_types(
    occurs_KN: np.ndarray, bins_N: np.ndarray, articles_N: np.ndarray, types: Sequence[str]
) -> dict[str, Any]:
    """Context type -> share of all tokens (ends not counted) whose word occurs in that context of their sentence."""
    tokens_A = np.bincount(articles_N, weights=bins_N != END)
    shares = {}
    for name, occurs_N in zip(types, occurs_KN, strict=True):
        occurring_A = np.bincount(articles_N, weights=occurs_N, minlength=len(tokens_A))
        shares[name] = ratios(occurring_A, {"share": tokens_A})["share"].to_dict()
    return shares


def effect_between(with_contexts: Sequence[Evaluation], without: Sequence[Evaluation] | None = None) -> dict[str, Any]:
    """:func:`cache_effect` of evaluations sentence by sentence: of a CUE model with contexts, and of any model without.

    One evaluation for each seed; ``without`` is None for the CUE model's own sentence encoder.
    """
    keys = ("document", "sentence", "position")
    tables = [evaluation.tokens() for evaluation in with_contexts]
    others = tables if without is None else [evaluation.tokens() for evaluation in without]
    table, first = tables[0], with_contexts[0].path
    for evaluation, own in zip(with_contexts, tables, strict=True):
        if "bin" not in own.column_names:
            raise DataError(f"{evaluation.path} has no contexts; give the evaluation of a CUE model with its contexts")
    for evaluation, own in zip((*with_contexts, *(without or [])), (*tables, *others), strict=False):
        if "sentence" not in own.column_names or table.select(keys) != own.select(keys):
            raise DataError(
                f"{first} and {evaluation.path} are not of the same sentences; measure both with contextwise measure sentences "
                "on one corpus"
            )
    bins_N = np.array([BINS.index(name) for name in table["bin"].to_pylist()], dtype=np.int8)
    column = "sentence_encoder_nats" if without is None else "nats"
    nats = (
        np.stack([own[name].to_numpy() for own in of_seeds]) for of_seeds, name in ((tables, "nats"), (others, column))
    )
    return cache_effect(bins_N, table["document"].to_numpy(), *nats)
