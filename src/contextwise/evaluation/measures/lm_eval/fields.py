"""Conversion of the fields of a local file to the fields of the harness's templates.

Each task accepts one or more :class:`Form` of a line: the Hub's fields, and those of other collections. A converted line
produces the same prompts, choices and targets as the Hub's copy of the line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateSyntaxError, meta

from contextwise.base.errors import DataError

Line = dict[str, Any]
LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class Form:
    """Format of the lines of a file.

    Attributes:
        fields: fields that a line must have.
        convert: maps a line to the harness's fields; raises ``ValueError`` if the line is invalid.
        changed: changes to the task's definition, if the lines are already preprocessed.
        gather: maps all lines to documents, if several lines form a document.
    """

    fields: tuple[str, ...]
    convert: Callable[[Line], Line]
    changed: Mapping[str, Any] = field(default_factory=dict)
    gather: Callable[[list[Line]], list[Line]] = list


def documents(
    path: Any, rows: Sequence[Line], renamed: Mapping[str, str], forms: Sequence[Form]
) -> tuple[list[Line], Form]:
    """Convert the documents of a file to the harness's fields, and determine the form of its lines.

    Args:
        path: name of the file for messages.
        renamed: the harness's field -> the file's, with dots into nested objects.
        forms: forms that the task accepts; the first that fits the first line is used.

    Raises:
        DataError: no form fits, or a line is invalid; the message names the file, line and fields.
    """
    first = _renamed(rows[0], renamed)
    form = next((form for form in forms if set(form.fields) <= set(first)), None)
    if form is None:
        wanted = "; or ".join(", ".join(form.fields) for form in forms)
        raise DataError(
            f"{path} has the fields {', '.join(map(str, rows[0])) or 'none'}, but {wanted} are needed; a mapping file can say "
            "which of them is which"
        )
    converted = []
    for number, row in enumerate(rows, start=1):
        line = _renamed(row, renamed)
        missing = [name for name in form.fields if name not in line]
        if missing:
            raise DataError(f"{path}, document {number}: there is no field {', '.join(missing)}")
        try:
            converted.append(form.convert(line))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise DataError(f"{path}, document {number}: {' '.join(str(error).split())[:200]}") from None
    return form.gather(converted), form


def _renamed(row: Line, renamed: Mapping[str, str]) -> Line:
    result = dict(row)
    for name, path in renamed.items():
        value: Any = row
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            result[name] = value
    return result


def _kept(*fields: str, check: Callable[[Line], None] = lambda line: None) -> Form:
    def convert(line: Line) -> Line:
        check(line)
        return {name: line[name] for name in fields}

    return Form(fields, convert)


def _text(name: str) -> Callable[[Line], None]:
    def check(line: Line) -> None:
        _need(isinstance(line[name], str) and bool(line[name].strip()), f"{name!r} must be a text")

    return check


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _index(value: Any, count: int, name: str) -> int:
    """Index of the correct choice, from a number or its digits."""
    _need(
        str(value).isdecimal() and int(value) < count,
        f"{name!r} is {value!r}, but must be from 0 to {count - 1}",
    )
    return int(value)


def _labelled(question: str) -> tuple[Form, Form]:
    """Forms with a question, labelled choices and the correct label: AI2's fields; and OLMo's, with a query and an index."""

    def own(line: Line) -> Line:
        choices = {"text": list(line["choices"]["text"]), "label": list(line["choices"]["label"])}
        _need(len(choices["text"]) == len(choices["label"]), "'choices' must have as many labels as texts")
        _need(
            line["answerKey"].strip() in choices["label"],
            f"'answerKey' is {line['answerKey']!r}, which is none of the labels {', '.join(map(str, choices['label']))}",
        )
        _text(question)(line)
        return {question: line[question], "choices": choices, "answerKey": line["answerKey"]}

    def olmo(line: Line) -> Line:
        query, texts = line["query"], list(line["choices"])
        head, tail = "Question: ", "\nAnswer:"
        _need(
            query.startswith(head) and query.endswith(tail),
            f"'query' must read {head!r}, the question, {tail!r}, but is {query[:60]!r}",
        )
        labels = list(LETTERS[: len(texts)])
        right = labels[_index(line["gold"], len(texts), "gold")]
        question_text = query.removeprefix(head).removesuffix(tail)
        return {question: question_text, "choices": {"text": texts, "label": labels}, "answerKey": right}

    return Form((question, "choices", "answerKey"), own), Form(("query", "choices", "gold"), olmo)


def _hellaswag() -> tuple[Form, Form]:
    names = ("activity_label", "ctx_a", "ctx_b", "endings", "label")

    def own(line: Line) -> Line:
        endings = list(line["endings"])
        label = _index(line["label"], len(endings), "label")
        return {**{name: line[name] or "" for name in names[:3]}, "endings": endings, "label": str(label)}

    def processed(line: Line) -> Line:
        choices = list(line["choices"])
        return {
            "query": line["query"],
            "choices": choices,
            "label": str(_index(line["gold"], len(choices), "gold")),
        }

    # These lines are already preprocessed as the harness does it, and must not be preprocessed again.
    return Form(names, own), Form(("query", "choices", "gold"), processed, {"process_docs": None})


def _piqa(line: Line) -> Line:
    return {
        **{name: line[name] for name in ("goal", "sol1", "sol2")},
        "label": _index(line["label"], 2, "label"),
    }


def _winogrande(line: Line) -> Line:
    _need("_" in line["sentence"], "'sentence' has no '_', where the options go")
    _need(str(line["answer"]) in ("1", "2"), f"'answer' is {line['answer']!r}, but must be 1 or 2")
    kept = {name: line[name] for name in ("sentence", "option1", "option2")}
    return {**kept, "answer": str(line["answer"])}


def _lambada(line: Line) -> None:
    _text("text")(line)
    _need(len(line["text"].split(" ")) > 1, "'text' must have several words: its last one is asked for")


def _boolq(line: Line) -> Line:
    right = line["answer"] if "answer" in line else line["label"]
    return {"passage": line["passage"], "question": line["question"], "label": _index(int(right), 2, "label")}


def _race_question(line: Line) -> Line:
    _need(line["answer"] in tuple("ABCD"), f"'answer' is {line['answer']!r}, but must be one of A, B, C, D")
    _need(len(line["options"]) == 4, "'options' must be four")
    return {name: line[name] for name in ("article", "question", "options", "answer")}


def _race_articles(lines: list[Line]) -> list[Line]:
    """Group questions into a document per article, in order; the harness asks the last question of an article."""
    grouped: dict[str, list[Line]] = {}
    for line in lines:
        problem = {name: line[name] for name in ("question", "answer", "options")}
        grouped.setdefault(line["article"], []).append(problem)
    return [{"article": article, "problems": repr(problems)} for article, problems in grouped.items()]


FORMS: dict[str, tuple[Form, ...]] = {
    "arc_easy": _labelled("question"),
    "arc_challenge": _labelled("question"),
    "openbookqa": _labelled("question_stem"),
    "lambada_openai": (_kept("text", check=_lambada),),
    "lambada_standard": (_kept("text", check=_lambada),),
    "winogrande": (Form(("sentence", "option1", "option2", "answer"), _winogrande),),
    "piqa": (Form(("goal", "sol1", "sol2", "label"), _piqa),),
    "sciq": (_kept("question", "support", "distractor1", "distractor2", "distractor3", "correct_answer"),),
    "race": (
        _kept("article", "problems", check=_text("article")),
        Form(("article", "question", "options", "answer"), _race_question, gather=_race_articles),
    ),
    "hellaswag": _hellaswag(),
    "wikitext": (
        _kept("page", check=_text("page")),
        Form(("text",), lambda line: {"page": line["text"]}),
    ),
    "boolq": (
        Form(("passage", "question", "label"), _boolq),
        Form(("passage", "question", "answer"), _boolq),
    ),
}


def forms_of(task: str, definition: Mapping[str, Any]) -> tuple[Form, ...]:
    """Forms that a task accepts; for a task without an entry in ``FORMS``, the fields that its templates name."""
    return FORMS.get(task) or (Form(template_fields(definition), dict),)


def template_fields(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that a definition's templates read; empty if code preprocesses the lines, because they are then unknown."""
    from lm_eval.utils import env

    if callable(definition.get("process_docs")):
        return ()
    fields: dict[str, None] = {}
    for key in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        template = definition.get(key)
        if not isinstance(template, str) or not template:
            continue
        if template.isidentifier():
            fields[template] = None
            continue
        try:
            names = meta.find_undeclared_variables(env.parse(template))
        except TemplateSyntaxError:
            continue
        fields |= dict.fromkeys(sorted(names))
    return tuple(fields)
