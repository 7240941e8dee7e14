"""Questions on long texts from files of LongBench's and L-Eval's form, both JSON Lines, ``.gz`` too.

LongBench: a line is a question, with ``context``, ``input``, ``answers``, ``dataset`` and optionally ``length``, ``language``,
``all_classes`` and ``_id``. L-Eval: a line is a document, with ``input`` (the text), ``instructions``, ``outputs`` and
``evaluation``. A line of LongBench's form may also give its own ``prompt``, ``metric``, ``group`` and ``max_new_tokens``, so
that a user's own data set needs no code.
"""

import functools
import hashlib
import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, PositiveInt

from contextwise.base.errors import DataError
from contextwise_evals.input_files import Form, checked, read_objects
from contextwise_evals.long_tasks.metrics import METRICS, Metric, harness_metrics

SUMMARY, CODE = "Summary", "Code & Class."
GROUPS = {"single": "Single-Doc", "multi": "Multi-Doc", "summarization": SUMMARY, "synthetic": "Synthetic"}
GROUPS |= {"fewshot": CODE, "code": CODE}
"""The harness's name of a group of tasks -> that of ContextLM's Table 5.

The table does not say which tasks its groups hold. Here its "Code & Class." has LongBench's few-shot tasks beside code.
"""
_NUMBER = {False: re.compile(r"Paragraph \d"), True: re.compile(r"段落\d")}


@dataclass(frozen=True)
class Dataset:
    """A data set of questions.

    Attributes:
        group: its score is averaged with those of the same group.
        new_tokens: most tokens of an answer.
        template: of the prompt, with ``{context}`` and ``{input}``; None for a plain one.
        chinese: whether words are cut as Chinese.
        few_shot: the text holds examples: only the first line of an answer counts, and no chat template is used.
        continues: the answer continues the text, as code does: no chat template either.
    """

    metric: Metric
    group: str
    new_tokens: int
    template: str | None = None
    chinese: bool = False
    few_shot: bool = False
    continues: bool = False


class _Definition(yaml.SafeLoader):
    """Reads the harness's definitions of tasks, with functions as their names."""


_Definition.add_constructor("!function", lambda loader, node: node.value)


@functools.cache
def longbench(name: str) -> Dataset | None:
    """The data set of LongBench (or LongBench-E, whose names end with ``_e``) as the harness defines it; None for others."""
    package = importlib.util.find_spec("lm_eval")
    folder = Path(((package and package.submodule_search_locations) or ["."])[0]) / "tasks" / "longbench"
    file = folder / f"{name.removesuffix('_e')}.yaml"
    if not re.fullmatch(r"\w[\w-]*", name) or name.startswith("_") or not file.is_file():
        return None
    task = yaml.load(file.read_text(encoding="utf-8"), _Definition)
    metric = task["process_results"].removeprefix("metrics.get_").removesuffix("_with_score")
    kind = next(tag for tag in task["tag"] if tag != "longbench_tasks").split("_")[1]
    return Dataset(
        metric={"code_sim": "code"}.get(metric, metric.removesuffix("_zh")),
        group=GROUPS[kind],
        new_tokens=task["generation_kwargs"]["max_gen_toks"],
        template=task["doc_to_text"].replace("{{context}}", "{context}").replace("{{question}}", "{input}"),
        chinese=metric.endswith("_zh"),
        few_shot=kind == "fewshot",
        continues=kind == "code",
    )


LEVAL = {
    "exam": Dataset("exam", "Exams", 16),
    "f1": Dataset("qa_f1", "Questions", 64),
    "rouge": Dataset("rouge", SUMMARY, 512),
}
"""L-Eval's kinds of evaluation; those by judges ("LLM", "human") have no metric."""
LEVAL_EXAMS = {"gsm100": Dataset("exam", "Exams", 512), "coursera": Dataset("options", "Exams", 512)}
LEVAL_EXAMS |= {"codeU": Dataset("code_output", "Exams", 512)}
"""L-Eval's exams whose answers are more than a letter or a word, by the names of their files."""

OTHER = Dataset("qa_f1", "Other", 64)
"""For a data set of the user's own, as far as its lines do not give it."""

FORMS = (
    "a line of LongBench has 'context', 'input', 'answers' and 'dataset'; one of L-Eval 'input', 'instructions', 'outputs' "
    "and 'evaluation'"
)


@dataclass(frozen=True, kw_only=True)
class Item(Dataset):
    """One question on a long text.

    Attributes:
        where: file and line.
        length: words of the text (characters of Chinese), as the file gives it.
    """

    dataset: str
    where: str
    context: str
    question: str
    answers: tuple[str, ...]
    length: int
    classes: tuple[str, ...] = ()

    @functools.cached_property
    def document(self) -> str:
        """Identifies the text: questions on one text are not independent of each other."""
        return hashlib.sha256(self.context.encode()).hexdigest()[:16]


class LongBenchLine(Form):
    """The fields of LongBench's form."""

    context: str = Field(min_length=1)
    input: str
    answers: list[str] = Field(min_length=1)
    dataset: str = Field(min_length=1)
    length: int | None = Field(default=None, ge=0)
    language: str | None = None
    all_classes: list[str] | None = None
    prompt: str | None = None
    metric: Metric | None = None
    group: str | None = Field(default=None, min_length=1)
    max_new_tokens: PositiveInt | None = None


class LEvalLine(Form):
    """The fields of L-Eval's form."""

    input: str = Field(min_length=1)
    instructions: list[str] = Field(min_length=1)
    outputs: list[str]
    evaluation: str
    prompt: str | None = None
    max_new_tokens: PositiveInt | None = None


def read_items(paths: Sequence[Path]) -> tuple[list[Item], list[str]]:
    """All questions of some files, and notes for a reader of their scores."""
    items: list[Item] = []
    notes: list[str] = []
    for path in paths:
        before, judged = len(items), Counter[str]()
        for where, row in read_objects(path, f"JSON Lines: {FORMS}"):
            if "instructions" in row or "outputs" in row:
                line = checked(LEvalLine, row, where, FORMS)
                if line.evaluation in ("LLM", "human"):
                    judged[line.evaluation] += 1
                else:
                    items += _leval_items(line, path, where)
            else:
                items.append(_longbench_item(checked(LongBenchLine, row, where, FORMS), where))
        if judged:
            notes.append(f"{judged.total():,} documents of {path} are for judges, without a metric; they were left out")
        elif len(items) == before:
            raise DataError(f"{path} is empty; give JSON Lines: {FORMS}")
    if not items:
        raise DataError(f"no question can be scored: {'; '.join(notes)}")
    return items, notes


def _longbench_item(line: LongBenchLine, where: str) -> Item:
    known = longbench(line.dataset)
    if known is None and line.metric is None:
        raise DataError(
            f"{where}: 'dataset' is {line.dataset!r}, which is none of LongBench's; add the field 'metric', "
            f"one of {', '.join(METRICS)}"
        )
    own = {"metric": line.metric, "group": line.group, "new_tokens": line.max_new_tokens, "template": line.prompt}
    own["chinese"] = line.language == "zh"
    known = replace(known or OTHER, **{name: value for name, value in own.items() if value})  # type: ignore[arg-type]
    if known.metric == "classification" and not set(line.answers) <= set(line.all_classes or ()):
        raise DataError(
            f"{where}: 'answers' must be among 'all_classes', which has all the class names; add them there"
        )
    if known.metric == "retrieval" and not all(map(_NUMBER[known.chinese].search, line.answers)):
        raise DataError(f"{where}: 'answers' must be of the form 'Paragraph 12' for the metric retrieval")
    return Item(
        **vars(known),
        dataset=line.dataset,
        where=where,
        context=line.context,
        question=line.input,
        answers=tuple(line.answers),
        length=len(line.context if known.chinese else line.context.split()) if line.length is None else line.length,
        classes=tuple(line.all_classes or ()),
    )


def _leval_items(line: LEvalLine, path: Path, where: str) -> list[Item]:
    if len(line.instructions) != len(line.outputs):
        raise DataError(
            f"{where}: 'instructions' has {len(line.instructions)} entries, but 'outputs' {len(line.outputs)}; "
            "each question needs one answer"
        )
    known = LEVAL.get(line.evaluation)
    if known is None:
        raise DataError(
            f"{where}: 'evaluation' is {line.evaluation!r}; it must be one of {', '.join(LEVAL)}, LLM, human"
        )
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json").removeprefix("leval_")
    known = LEVAL_EXAMS.get(name, known) if line.evaluation == "exam" else known
    about: dict[str, Any] = {"metric": known.metric, "group": known.group, "prompt": line.prompt}
    about |= {"context": line.input, "dataset": name, "max_new_tokens": line.max_new_tokens or known.new_tokens}
    pairs = zip(line.instructions, line.outputs, strict=True)
    return [
        _longbench_item(LongBenchLine(input=question, answers=[answer], **about), f"{where}, question {i}")
        for i, (question, answer) in enumerate(pairs, start=1)
    ]


def chosen_items(
    files: Sequence[Path],
    lengths: tuple[int, int | None] | None = None,
    limit: int | None = None,
    new_tokens: int | None = None,
) -> tuple[list[Item], list[str]]:
    """The questions of the files that are used, and notes for a reader of their scores.

    Args:
        lengths: words of a text, from and below; None below: without a limit.
        limit: use only so many questions of each data set: the first of each text, then the second of each, and so on.
        new_tokens: most tokens of an answer, instead of each data set's own.

    Raises:
        DataError: a file is wrong, or no question is in the range.
        ConfigError: a package that scores the answers is missing.
    """
    harness_metrics()
    items, notes = read_items(files)
    low, high = lengths or (0, None)
    in_range = [item for item in items if item.length >= low and (high is None or item.length < high)]
    if not in_range:
        words = [item.length for item in items]
        raise DataError(
            f"no text has a length from {low:,} to below {'any' if high is None else format(high, ',')} words: the "
            f"shortest has {min(words):,}, the longest {max(words):,}; give other lengths"
        )
    if len(in_range) < len(items):
        notes.append(
            f"{len(items) - len(in_range):,} of {len(items):,} questions were left out for their text's length"
        )
    chosen = in_range if limit is None else _of_many_texts(in_range, limit)
    if new_tokens is not None:
        chosen = [replace(item, new_tokens=new_tokens) for item in chosen]
    return chosen, notes


def _of_many_texts(items: Sequence[Item], limit: int) -> list[Item]:
    """So many questions of each data set, of as many texts as there are, in their order."""
    of_text: Counter[tuple[str, str]] = Counter()
    turns: dict[str, list[tuple[int, int]]] = {}
    for i, item in enumerate(items):
        turns.setdefault(item.dataset, []).append((of_text[item.dataset, item.document], i))
        of_text[item.dataset, item.document] += 1
    kept = sorted(i for of_set in turns.values() for _, i in sorted(of_set)[:limit])
    return [items[i] for i in kept]
