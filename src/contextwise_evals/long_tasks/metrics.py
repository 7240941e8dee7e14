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

Metric = Literal["qa_f1", "rouge", "classification", "retrieval", "count", "code", "exam", "options", "code_output"]
METRICS: tuple[str, ...] = get_args(Metric)
OF_WORDS = ("qa_f1", "rouge", "retrieval")
"""Metrics that the harness has for Chinese too."""

_OPTIONS = re.compile(r"\b[A-D]{1,4}\b")
_WANTED_OPTIONS = re.compile(r"\W*([A-D]{1,4})(?:\W*|[.):,].*)", re.DOTALL)
_LISTED = re.compile(r"\s*(?:\W*\b[A-D][.):].*(?:\n|$))+")  # options on lines of their own, from the first line on
_FIRST_LETTER = re.compile(r"^\W*([A-D])", re.MULTILINE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SAID_NUMBER = re.compile(rf"the answer is[^\d\n-]*({_NUMBER.pattern})", re.IGNORECASE)
_FILLERS = re.compile(r"\b(?:will be|would be|is|of the code|the value of|the result of|printed)\b")
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
    if metric in ("exam", "options", "code_output"):
        of_one = code_output if metric == "code_output" else functools.partial(exam, several=metric == "options")
        return max(of_one(answer, reference) for reference in wanted)
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


def exam(answer: str, reference: str, several: bool = False) -> float:
    """L-Eval's exact match for exams.

    - References of options (``C``, ``AC``, ``(B) because …``): the first group of letters A to D in the answer must be these;
      0.25 where it is some of several. With ``several`` (coursera) the letters of an answer that gives an option a line are
      gathered. L-Eval counts an answer without any letter as A; here it is wrong.
    - Numbers (gsm100): the number after "The answer is", else the last of the first paragraph, must be equal.
    - ``True [fact: False]``: the first of "true" and "false" in the answer must be what the document says. L-Eval asks for the
      fact in the real world too, without the document; that does not depend on the context, and is left out.
    - Other references must occur, as whole words, in the first line that is longer than one character, white space and
      capitals aside.
    """
    options = _WANTED_OPTIONS.fullmatch(reference.strip())
    if options:
        listed, letters = _LISTED.match(answer) if several else None, _OPTIONS.search(answer)
        chosen = set(_FIRST_LETTER.findall(listed[0])) if listed else set(letters[0] if letters else "")
        right = set(options[1])
        return 1.0 if chosen == right else 0.25 if chosen and chosen < right else 0.0
    if _NUMBER.fullmatch(reference.strip()):
        numbers = _SAID_NUMBER.findall(answer)[:1] or _NUMBER.findall(answer.strip().split("\n\n")[0])[-1:]
        return float(any(_value(number) == _value(reference) for number in numbers))
    truth_value = reference.lower().split("[fact:")[0].strip()
    if truth_value in ("true", "false"):
        truth = _TRUTH.search(answer)
        return float(truth is not None and truth[1].lower() == truth_value)
    line = next((line for line in answer.split("\n") if len(line) > 1), answer)
    return float(_occurs(reference, line))


def code_output(answer: str, reference: str) -> float:
    """L-Eval's match for the output of a program (codeU): it must be among the last words of the answer.

    Three words more than the reference has are looked at, without commas, quotation marks and words such as "will be": the
    last, or where the answer names "the final output" those behind it.
    """
    answer, wanted = (re.sub(r"[,'\\]|\.0\b", "", text) for text in (answer, reference))
    answer = re.sub(r"(?<=[][])\s+(?=[][])", "", answer)
    _, named, behind = answer.rpartition("the final output")
    words, count = _FILLERS.sub("", behind).split(), len(reference.split()) + 3
    return float(_occurs(wanted, " ".join(words[:count] if named else words[-count:])))


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _occurs(wanted: str, text: str) -> bool:
    """Whether a text has these words, white space and capitals aside."""
    letters = r"\s*".join(map(re.escape, "".join(wanted.lower().split())))
    return re.search(rf"(?<!\w){letters}(?!\w)", text.lower()) is not None
