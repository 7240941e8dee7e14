"""Scores of answers to questions on long texts, from 0 to 1: the harness's for LongBench, and L-Eval's for exams.

LongBench (Bai et al. 2024) takes the best score over the reference answers of a question; the functions are those of
lm-evaluation-harness (``lm_eval/tasks/longbench/metrics.py``): ``qa_f1`` of words, ``rouge`` (ROUGE-L), ``classification``,
``retrieval``, ``count``, and ``code``, the similarity of the first line of code. Chinese is cut into words by jieba.
"""

import functools
import logging
import re
import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

from contextwise.base.errors import ConfigError, not_installed

Metric = Literal["qa_f1", "rouge", "classification", "retrieval", "count", "code", "exam"]
METRICS: tuple[str, ...] = get_args(Metric)
OF_WORDS = ("qa_f1", "rouge", "retrieval")
"""Metrics that the harness has for Chinese too."""

_OPTIONS = re.compile(r"\b[A-D]{1,4}\b")
_ONLY_OPTIONS = re.compile(r"\W*([A-D]{1,4})\W*")
_TRUTH = re.compile(r"\b(true|false)\b", re.IGNORECASE)


def score(
    answer: str,
    wanted: Sequence[str],
    metric: Metric,
    *,
    classes: Sequence[str] = (),
    chinese: bool = False,
    first_line: bool = False,
) -> float:
    """The best score of one answer over the references.

    Args:
        answer: what the model wrote.
        wanted: reference answers, at least one.
        classes: all the class names, for ``classification``.
        first_line: only the first line of the answer counts, as LongBench has it for its few-shot tasks.
    """
    if first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    if metric == "exam":
        return max(exam(answer, reference) for reference in wanted)
    name = "code_sim" if metric == "code" else f"{metric}_zh" if chinese and metric in OF_WORDS else metric
    document = {"answers": list(wanted), "all_classes": list(classes)}
    return float(getattr(harness_metrics(), f"get_{name}_score")(document, [answer])[f"{name}_score"])


@functools.cache
def harness_metrics() -> Any:
    """The harness's module of LongBench's metrics; a ConfigError where it or a package that it needs is not installed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            from lm_eval.tasks.longbench import metrics
    except ImportError:
        raise ConfigError(
            "long tasks are scored by lm-evaluation-harness with LongBench's packages, a part of "
            f"{not_installed('lm_eval[longbench]')}"
        ) from None
    metrics.jieba.setLogLevel(logging.WARNING)
    return metrics


def exam(answer: str, reference: str) -> float:
    """L-Eval's exact match for exams.

    - References of options (``C``, ``AC``, ``(B) because …``): the first group of letters A to D in the answer must be these;
      0.25 where it is some of several. L-Eval counts an answer without any letter as A; here it is wrong.
    - ``True [fact: False]``: the first of "true" and "false" in the answer must be what the document says. L-Eval asks for the
      fact in the real world too, without the document; that does not depend on the context, and is left out.
    - Other references must occur in the first line that is longer than one character, white space and capitals aside.
    """
    options = _ONLY_OPTIONS.fullmatch((reference.split() or [""])[0])
    if options:
        letters = _OPTIONS.search(answer)
        chosen, right = set(letters[0] if letters else ""), set(options[1])
        return 1.0 if chosen == right else 0.25 if chosen and chosen < right else 0.0
    truth_value = reference.lower().split("[fact:")[0].strip()
    if truth_value in ("true", "false"):
        truth = _TRUTH.search(answer)
        return float(truth is not None and truth[1].lower() == truth_value)
    line = next((line for line in answer.split("\n") if len(line) > 1), answer)
    wanted = "".join(reference.lower().split())
    return float(wanted in "".join(line.lower().split()))
