"""Scores of answers to questions on long texts, from 0 to 1: LongBench's metrics, and L-Eval's for exams.

LongBench (Bai et al. 2024) takes the best score over the reference answers of a question. With p for the answer:

    qa_f1           F1 of the words: 2·|p ∩ a| / (|p| + |a|), as multisets, both normalised: small letters, no punctuation,
                    no articles (a, an, the)
    rouge           ROUGE-L: F1 of the longest common subsequence of words, 2·LCS(p, a) / (|p| + |a|)
    classification  1/k where the true class is one of the k class names that occur in p, else 0; names that are part of the
                    true class's name do not count among the k
    retrieval       share of the numbers in p that are the true paragraph's
    count           share of the numbers in p that are the true count
    code            similarity of the first line of p that is no comment: 1 - indels / (characters of both)
    exam            L-Eval's exact match (An et al. 2024): see :func:`exam`

Differences from LongBench's own arithmetic: Chinese is compared by characters, not by the words of a segmenter. ROUGE-L is
that of ``rouge_score``, which treats an answer as one sentence and ignores case; LongBench's ``rouge`` does not. The
similarity of code is not rounded to whole percents. All names that are part of the true class's name are left out, where
LongBench keeps every second of several in a row. So figures are near LongBench's, not equal to them in every digit.
"""

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from rapidfuzz import fuzz

from contextwise.base.errors import ConfigError

Metric = Literal["qa_f1", "rouge", "classification", "retrieval", "count", "code", "exam"]
METRICS: tuple[str, ...] = get_args(Metric)
CHINESE = "zh"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PARAGRAPH = re.compile(r"(?:Paragraph |段落)(\d+)")
_NUMBER = re.compile(r"\d+")
_OPTIONS = re.compile(r"\b[A-D]{1,4}\b")
_ONLY_OPTIONS = re.compile(r"\W*([A-D]{1,4})\W*")
_TRUTH = re.compile(r"\b(true|false)\b", re.IGNORECASE)
_COMMENT_MARKS = ("`", "#", "//")


def score(
    answer: str,
    wanted: Sequence[str],
    metric: Metric,
    *,
    classes: Sequence[str] = (),
    language: str = "en",
    first_line: bool = False,
) -> float:
    """The best score of one answer over the references.

    Args:
        answer: what the model wrote.
        wanted: reference answers, at least one.
        classes: all the class names, for ``classification``.
        language: ``zh`` is compared by characters.
        first_line: only the first line of the answer counts, as LongBench has it for its few-shot tasks.
    """
    if first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    functions: dict[str, Callable[[str], float]] = {
        "qa_f1": lambda reference: qa_f1(answer, reference, language),
        "rouge": lambda reference: float(_rouge(language).score(reference, answer)["rougeL"].fmeasure),
        "classification": lambda reference: classification(answer, reference, classes),
        "retrieval": lambda reference: share_of_numbers(answer, true_paragraph(reference) or ""),
        "count": lambda reference: share_of_numbers(answer, reference.strip()),
        "code": lambda reference: code(answer, reference),
        "exam": lambda reference: exam(answer, reference),
    }
    return max(map(functions[metric], wanted))


def words(text: str, language: str = "en") -> list[str]:
    """The words that ``qa_f1`` compares; of Chinese the characters, punctuation left out."""
    text = text.lower()
    if language == CHINESE:
        return [c for c in text if not c.isspace() and unicodedata.category(c)[0] not in "PS"]
    return _ARTICLES.sub(" ", text.translate(_NO_PUNCTUATION)).split()


def qa_f1(answer: str, reference: str, language: str = "en") -> float:
    """F1 of the words, as multisets."""
    written, wanted = words(answer, language), words(reference, language)
    common = sum((Counter(written) & Counter(wanted)).values())
    return 2 * common / (len(written) + len(wanted)) if common else 0.0


def classification(answer: str, reference: str, classes: Sequence[str]) -> float:
    """1/k where the true class is among the k class names in the answer."""
    names = [name for name in classes if name in answer and (name == reference or name not in reference)]
    return 1 / len(names) if reference in names else 0.0


def true_paragraph(reference: str) -> str | None:
    """The number in "Paragraph 12" or "段落12"; None where there is none."""
    match = _PARAGRAPH.search(reference)
    return match[1] if match else None


def share_of_numbers(answer: str, wanted: str) -> float:
    """Share of the numbers in the answer that are the wanted one."""
    numbers = _NUMBER.findall(answer)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def code(answer: str, reference: str) -> float:
    """Similarity of the first line that has no comment mark (`, #, //)."""
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in _COMMENT_MARKS)), "")
    return fuzz.ratio(line, reference) / 100


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


class _Characters:
    """``rouge_score``'s tokenizer for Chinese."""

    def tokenize(self, text: str) -> list[str]:
        return words(text, CHINESE)


def check_installed(metrics: Iterable[Metric]) -> None:
    """Raise a ConfigError, before anything is answered, if a package that computes a metric is missing."""
    if "rouge" in metrics:
        _rouge("en")


@functools.cache
def _rouge(language: str) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError(
            "summaries are scored by the package rouge_score, which is not installed; pip install 'contextwise[eval]'"
        ) from None
    return RougeScorer(["rougeL"], tokenizer=_Characters() if language == CHINESE else None)
