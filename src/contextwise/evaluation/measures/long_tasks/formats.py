"""Questions on long texts from files of LongBench's and L-Eval's form, both JSON Lines, ``.gz`` too.

LongBench: a line is a question, with ``context``, ``input``, ``answers``, ``dataset`` and perhaps ``length``, ``language``,
``all_classes`` and ``_id``. L-Eval: a line is a document, with ``input`` (the text), ``instructions``, ``outputs`` and
``evaluation``. A line of LongBench's form may also say its own ``prompt``, ``metric``, ``group`` and ``max_new_tokens``, so
that a data set of one's own needs no code.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from contextwise.base.errors import DataError
from contextwise.data.input_files import read_objects
from contextwise.evaluation.measures.long_tasks.datasets import (
    LEVAL,
    OTHER,
    OTHER_NEW_TOKENS,
    Dataset,
    longbench_dataset,
)
from contextwise.evaluation.measures.long_tasks.metrics import METRICS, Metric, true_paragraph

FORMS = (
    "a line of LongBench has 'context', 'input', 'answers' and 'dataset'; one of L-Eval 'input', 'instructions', 'outputs' "
    "and 'evaluation'"
)


@dataclass(frozen=True)
class Item:
    """One question on a long text.

    Attributes:
        document: the same for all questions on one text, which are not independent of each other.
        where: file and line.
        length: words of the text (characters of Chinese), as the file has it.
        template: the line's own prompt, None if it has none.
    """

    dataset: str
    document: str
    where: str
    context: str
    question: str
    answers: tuple[str, ...]
    metric: Metric
    group: str
    new_tokens: int
    length: int
    language: str = "en"
    classes: tuple[str, ...] = ()
    template: str | None = None
    few_shot: bool = False
    in_chat: bool = True


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class LongBenchLine(_Line):
    """The fields of LongBench's form; further ones are passed over."""

    context: str = Field(min_length=1)
    input: str
    answers: list[str] = Field(min_length=1)
    dataset: str = Field(min_length=1)
    length: int | None = Field(None, ge=0)
    language: str | None = None
    all_classes: list[str] | None = None
    prompt: str | None = None
    metric: Metric | None = None
    group: str | None = Field(None, min_length=1)
    max_new_tokens: PositiveInt | None = None


class LEvalLine(_Line):
    """The fields of L-Eval's form; further ones are passed over."""

    input: str = Field(min_length=1)
    instructions: list[str] = Field(min_length=1)
    outputs: list[str]
    evaluation: str
    prompt: str | None = None
    max_new_tokens: PositiveInt | None = None


def read_items(paths: Sequence[Path]) -> tuple[list[Item], list[str]]:
    """All the questions of some files, and what a reader of the scores should know about them.

    Raises:
        DataError: a file is missing, damaged or empty, or a line's fields are wrong; names the line and all of them.
    """
    items: list[Item] = []
    notes: list[str] = []
    for path in paths:
        before, judged = len(items), Counter[str]()
        for where, row in read_objects(path, f"JSON Lines: {FORMS}"):
            if "instructions" in row or "outputs" in row:
                line = _checked(LEvalLine, row, where)
                if line.evaluation in ("LLM", "human"):
                    judged[line.evaluation] += 1
                else:
                    items += _leval_items(line, path, where)
            else:
                items.append(_longbench_item(_checked(LongBenchLine, row, where), where))
        if judged:
            notes.append(
                f"{judged.total():,} documents of {path} are for judges, without a metric; they were passed over"
            )
        elif len(items) == before:
            raise DataError(f"{path} is empty; give JSON Lines: {FORMS}")
    if not items:
        raise DataError(f"no question can be scored: {'; '.join(notes)}")
    return items, notes


def _checked(form: type[Any], row: dict[str, Any], where: str) -> Any:
    """A line as its form has it.

    Raises:
        DataError: naming all the fields that are missing or wrong.
    """
    try:
        return form.model_validate(row)
    except ValidationError as error:
        problems = [_problem(problem) for problem in error.errors()]
    fields = ", ".join(map(repr, list(row)[:8])) or "none"
    raise DataError(f"{where}: {', '.join(problems)} (fields: {fields}); {FORMS}")


def _problem(problem: Any) -> str:
    name = repr(".".join(map(str, problem["loc"])))
    if problem["type"] == "missing":
        return f"{name} is missing"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{name} is wrong ({message.removeprefix('input ')})"


def _longbench_item(line: LongBenchLine, where: str) -> Item:
    known = longbench_dataset(line.dataset)
    if known is None and line.metric is None:
        raise DataError(
            f"{where}: 'dataset' is {line.dataset!r}, which is none of LongBench's; add the field 'metric', "
            f"one of {', '.join(METRICS)}"
        )
    known = known or Dataset("qa_f1", OTHER, OTHER_NEW_TOKENS)
    item = Item(
        dataset=line.dataset,
        document=_same_text(line.context),
        where=where,
        context=line.context,
        question=line.input,
        answers=tuple(line.answers),
        metric=line.metric or known.metric,
        group=line.group or known.group,
        new_tokens=line.max_new_tokens or known.new_tokens,
        length=len(line.context.split()) if line.length is None else line.length,
        language=line.language or "en",
        classes=tuple(line.all_classes or ()),
        template=line.prompt,
        few_shot=known.few_shot,
        in_chat=not (known.few_shot or known.continues),
    )
    _check_answers(item)
    return item


def _same_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_answers(item: Item) -> None:
    if item.metric == "classification" and not set(item.answers) <= set(item.classes):
        raise DataError(
            f"{item.where}: 'answers' must be among 'all_classes', which has all the class names; add them there"
        )
    if item.metric == "retrieval" and not all(map(true_paragraph, item.answers)):
        raise DataError(
            f"{item.where}: 'answers' must be of the form 'Paragraph 12' for the metric retrieval"
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
    document = _same_text(line.input)
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json").removeprefix("leval_")
    return [
        Item(
            dataset=name,
            document=document,
            where=f"{where}, question {i}",
            context=line.input,
            question=question,
            answers=(answer,),
            metric=known.metric,
            group=known.group,
            new_tokens=line.max_new_tokens or known.new_tokens,
            length=len(line.input.split()),
            template=line.prompt,
        )
        for i, (question, answer) in enumerate(zip(line.instructions, line.outputs, strict=True), start=1)
    ]
