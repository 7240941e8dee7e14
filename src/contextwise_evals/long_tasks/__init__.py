"""Questions on long documents in LongBench's or L-Eval's form, at several visible contexts: ``contextwise measure longbench``.

ContextLM, Section 4.1 ("Block Size") and Table 5: inputs beyond the trained context, read with dynamic NTK.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import ConfigError
from contextwise.base.estimates import FEWEST_DOCUMENTS, Estimate, counted
from contextwise.base.tables import Column, Row, Table, terminal
from contextwise.evaluation.kernel import InputFile, Measure, Outcome, Subject, Work

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise_evals.long_tasks.prompts import LongPrompt

LONGEST_DEFAULT = 4096
"""Tokens of the room of a model without a limit of positions, by default."""
PARTS = (8, 4, 2, 1)
"""The room is divided by these for the visible contexts by default."""
MOST_COLUMNS = 5
"""Visible contexts beside each other in a table."""
KEPT = {
    "ends": "the first and the last tokens of a prompt (cut in the middle)",
    "nearest": "the last tokens of the text, and all of the prompt around it",
}
LEVEL_COLUMNS = (
    Column("visible", "integer", align="right"),
    Column("score", "estimate", ".2f", interval="own"),
    Column("to the next", "difference", "+.2f", interval="own", missing=""),
)
_RANGE = re.compile(r"(\d+)-(\d*)")


class LongBench(Measure):
    """Ask the long questions of LongBench or L-Eval files, at several visible contexts.

    Prints the score of each data set, of each group and of all, at each visible context, and where more input stops helping.
    LongBench's prompts and metrics are those of lm-evaluation-harness. Inputs may be longer than the training context (rope). A
    stopped measurement resumes.
    """

    name = "longbench"
    version = 5
    changes_model = True
    on_corpus = False

    files: list[InputFile] = Field(min_length=1, description="Files of LongBench's or L-Eval's form, JSON Lines.")
    visible: list[int | Literal["all"]] | None = Field(
        default=None,
        min_length=1,
        description="Visible contexts: tokens of a prompt, and all for whole prompts; default: 1/8 to all of the model's "
        "positions.",
    )
    keep: Literal["ends", "nearest"] = Field(
        default="ends", description="The visible part of a longer prompt: its two ends, or the nearest text."
    )
    lengths: str | None = Field(
        default=None, description="Words of a text, from-below, such as 0-4000 or 8000-; default: any."
    )
    limit: int | None = Field(
        default=None, ge=1, description="Ask N questions of each data set only, of as many texts as possible."
    )
    new_tokens: int | None = Field(
        default=None, ge=1, description="Most tokens of an answer; default: the data set's own."
    )
    rope: Literal["none", "linear", "dynamic", "yarn"] | None = Field(
        default=None,
        description="How rotary positions are extended beyond the training context; none: as they are; default: longer prompts "
        "are refused.",
    )
    rope_factor: float | None = Field(
        default=None, ge=1, description="Factor of the extension; default: the longest input over the training context."
    )
    chat: bool = Field(default=False, description="Ask through the model's chat template.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.files)) < len(self.files):
            raise ConfigError("a file of questions is given twice; name each once")
        if self.lengths is not None:
            read_range(self.lengths)
        if self.rope is None and self.rope_factor is not None:
            raise ConfigError("rope_factor is given without `rope`; give a method too, such as dynamic")
        if self.rope is not None and self.visible is None:
            raise ConfigError(
                "`rope` lets a model read beyond its positions; give `visible` too, such as 512,1024 or all"
            )
        smallest = min((size for size in self.visible or () if size != "all"), default=2)
        if smallest < 2:
            raise ConfigError(f"`visible` has {smallest}, but must be at least 2")
        return self

    def label(self, corpus: "Corpus | None") -> str:
        first = self.files[0].name.removesuffix(".gz").rsplit(".", 1)[0]
        return first if len(self.files) == 1 else f"{first}-and-{len(self.files) - 1}-more"

    def run(self, subject: Subject, corpus: "Corpus | None", work: Work) -> Outcome:
        """Ask every question at every visible context, and score the answers.

        1. The files' lines become questions, and these token ids.
        2. The model gets positions for the longest of them, or it is checked that it has so many.
        3. Every question is answered at every visible context.
        4. The answers become scores with intervals; ``answers.jsonl`` has one line a question.
        """
        from contextwise.models.rope import same_frequencies_up_to
        from contextwise_evals.answering.prompts import Encoder, answer_all, check_vocabulary
        from contextwise_evals.answering.readers import ModelReader
        from contextwise_evals.long_tasks import prompts as long_prompts
        from contextwise_evals.long_tasks.items import chosen_items
        from contextwise_evals.long_tasks.results import summarize

        lengths = None if self.lengths is None else read_range(self.lengths)
        items, notes = chosen_items(self.files, lengths, self.limit, self.new_tokens)
        encoder = Encoder(subject.tokenizer, name=subject.source)
        chat = Encoder(subject.tokenizer, True, subject.source) if self.chat else None
        prompts = long_prompts.encode_items(items, encoder, chat, self.keep)
        every = [prompt for encoded in prompts.values() for prompt in encoded]
        check_vocabulary(subject, every)
        visible, factor = self._prepare_positions(subject, every)
        batches = long_prompts.plan_answers(
            prompts, visible, subject.batch_tokens, same_frequencies_up_to(subject.model)
        )
        reader = ModelReader(subject.model, subject.tokenizer)
        answers = answer_all(reader, prompts, batches, work, f"longbench {subject.name}")
        summary, rows = summarize(prompts, visible, answers)
        about = {"visible": visible, "rope_factor": factor, "trained_context": subject.trained_context}
        return Outcome({**about, **summary, "notes": notes}, {"answers": rows})

    def _prepare_positions(self, subject: Subject, prompts: "list[LongPrompt]") -> tuple[list[int], float | None]:
        """The visible contexts, ascending, and the factor by which the model's positions were extended for them, or None."""
        from contextwise.models.rope import extend_positions, rotary_modules
        from contextwise_evals.answering.prompts import check_positions
        from contextwise_evals.long_tasks.prompts import check_visible

        around = max(len(p.head) + len(p.tail) + p.item.new_tokens for p in prompts)
        if self.visible:
            longest = max(len(prompt.body) for prompt in prompts)
            visible = sorted({longest if size == "all" else size for size in self.visible})
        else:
            room = LONGEST_DEFAULT if subject.positions is None else subject.positions - around
            if room < 2 * PARTS[0]:
                raise ConfigError(
                    f"{subject.source} has {subject.positions} positions, and answers take up to {around} of them, which "
                    "leaves too few for questions; give fewer new tokens"
                )
            visible = [room // part for part in PARTS]
        check_visible(prompts, visible[0])
        if self.rope is not None:
            needed = max(len(p.prompt(visible[-1])) + p.item.new_tokens for p in prompts)
            factor = extend_positions(subject.model, needed, self.rope, self.rope_factor, subject.trained_context)
            return visible, factor
        every = [(f"the question at {p.item.where}", p, p.item.new_tokens) for p in prompts]
        rotary = bool(rotary_modules(subject.model))
        further = ", or `rope` dynamic" if rotary else ", or a model with rotary positions"
        check_positions(subject, every, visible[-1], further)
        return visible, None

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        columns = range(len(summary["visible"]))
        groups = summary["groups"] if len(summary["groups"]) > 1 else {}
        levels = {**groups, "Overall": summary["overall"]}
        rows = []
        for row in summary["overall"]["scores"]:
            gain = row["to_the_next"] and Estimate.from_dict(row["to_the_next"]).scaled(100)
            rows.append((row["visible"], Estimate.from_dict(row["score"]).scaled(100), gain))
        return Group(
            Text(_heading(summary)),
            "",
            *(_scores_table(summary, columns[i : i + MOST_COLUMNS]) for i in columns[::MOST_COLUMNS]),
            "",
            terminal("Overall: the mean over groups, of the mean over their data sets"),
            Table("", LEVEL_COLUMNS, rows),
            terminal(*(f"{name}: {verdict(level)}" for name, level in levels.items())),
            terminal(*(f"Note: {note}." for note in summary["notes"])),
        )


def read_range(text: str) -> tuple[int, int | None]:
    """``0-4000`` or ``8000-``: the least number of words, and the number below which they are; ConfigError for all else."""
    match = _RANGE.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2]) if match[2] else None) if match else (0, 0)
    if high is not None and high <= low:
        raise ConfigError(f"lengths is {text!r}; give words from-below, such as 0-4000, or 8000- for no limit")
    return low, high


def verdict(level: dict[str, Any]) -> str:
    """Where more input stops helping."""
    if len(level["scores"]) == 1:
        return "with one visible context there is none to compare it with; give several visible contexts."
    if all(row["score"]["value"] == 0 for row in level["scores"]):
        return "every answer scores 0, which says nothing about context."
    stop = level["stops_helping"]
    if stop is None:
        return f"a data set of fewer than {FEWEST_DOCUMENTS} documents allows no verdict."
    if stop["to_the_largest"] is None:
        return f"more input still helps at {stop['visible']:,} visible tokens, the most that were measured."
    gain = Estimate.from_dict(stop["to_the_largest"])
    text = f"more input stops helping at {stop['visible']:,} visible tokens"
    if stop["visible"] == level["scores"][0]["visible"]:
        text = (
            f"no visible context is significantly better than {stop['visible']:,} tokens, the least that were measured"
        )
    harm = ", which harms" if gain.above(0.0) is False else ""
    return f"{text}; from there to the most, {gain.scaled(100):+.2f}{harm}."


def _heading(summary: dict[str, Any]) -> str:
    settings = summary["settings"]
    questions, documents = (
        sum(dataset[name] for dataset in summary["datasets"].values()) for name in ("questions", "documents")
    )
    chat = ", in its chat template" if settings["chat"] else ""
    rope = ""
    if settings["rope"] is not None:
        factor = "" if summary["rope_factor"] is None else f", factor {summary['rope_factor']:.3g}"
        rope = f" Trained with {summary['trained_context']:,} positions; rope {settings['rope']}{factor}."
    return (
        f"{summary['model']}{chat}: {counted(questions, 'question')} on "
        f"{counted(documents, 'document')}. Visible are {KEPT[settings['keep']]}.{rope}"
    )


def _scores_table(summary: dict[str, Any], contexts: Sequence[int]) -> Table:
    """Scores at some of the visible contexts, times 100, as LongBench prints them."""

    def row(name: str, level: dict[str, Any], *about: Any, **style: Any) -> Row:
        scores = [100 * level["scores"][context]["score"]["value"] for context in contexts]
        return Row([name, *(about or ("", "")), *scores], **style)

    columns = [
        Column("data set"),
        Column("metric", align="left"),
        Column("questions", "integer"),
        *(Column(f"{summary['visible'][context]:,}", "estimate", ".2f") for context in contexts),
    ]
    rows = []
    for group, level in summary["groups"].items():
        for name in level["datasets"]:
            dataset = summary["datasets"][name]
            rows.append(row(name, dataset, dataset["metric"], dataset["questions"]))
        rows.append(row(group, level, bold=True, last=True))
    rows.append(row("Overall", summary["overall"], bold=True))
    return Table("score", columns, rows)
