"""Questions on long documents in LongBench's or L-Eval's form, at several visible contexts: ``contextwise longbench``.

ContextLM, Section 4.1 ("Block Size") and Table 5: inputs beyond the trained context, read with dynamic NTK.
"""

import re
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from rich.console import RenderableType

from contextwise.base.errors import ConfigError
from contextwise.evaluation.kernel import InputFile, Measure, Outcome, Subject, Work

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.evaluation.measures.long_tasks.prompts import LongPrompt

LONGEST_DEFAULT = 4096
"""Tokens of the room of a model without a limit of positions, by default."""
PARTS = (8, 4, 2, 1)
"""The room is divided by these for the visible contexts by default."""
_RANGE = re.compile(r"(\d+)-(\d*)")


class LongBench(Measure):
    """Ask the long questions of LongBench or L-Eval files, at several visible contexts.

    Prints the score of each data set, of each group and of all, by LongBench's metrics, at each visible context, and where more
    input stops helping. Inputs may be longer than the training context (rope). A stopped measurement resumes.
    """

    name = "longbench"
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
    limit: int | None = Field(default=None, ge=1, description="Ask only the first N questions of each data set.")
    prompts: InputFile | None = Field(
        default=None,
        description="Templates with {context} and {input}, such as LongBench's dataset2prompt.json; default: plain ones.",
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
            raise ConfigError("rope_factor is given without rope; give a method too, such as dynamic")
        if self.rope is not None and self.visible is None:
            raise ConfigError(
                "rope lets a model read beyond its positions; give the visible contexts too, such as 512,1024 or all"
            )
        smallest = min((size for size in self.visible or () if size != "all"), default=2)
        if smallest < 2:
            raise ConfigError(f"a visible context is {smallest}, but must be at least 2")
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
        from contextwise.evaluation.answering.prompts import Encoder, answer_all, check_vocabulary
        from contextwise.evaluation.answering.readers import ModelReader
        from contextwise.evaluation.measures.long_tasks import prompts as long_prompts
        from contextwise.evaluation.measures.long_tasks.items import chosen_items
        from contextwise.evaluation.measures.long_tasks.results import summarize

        lengths = None if self.lengths is None else read_range(self.lengths)
        items, notes = chosen_items(self.files, lengths, self.limit, self.new_tokens)
        templates = {} if self.prompts is None else long_prompts.read_templates(self.prompts)
        plain = {item.dataset for item in items if long_prompts.given_template(item, templates) is None}
        if templates and plain:
            notes.append(f"{self.prompts} has no template for {', '.join(sorted(plain))}; plain ones were used")
        encoder = Encoder(subject.tokenizer, name=subject.source)
        chat = Encoder(subject.tokenizer, True, subject.source) if self.chat else None
        prompts = long_prompts.encode_items(items, templates, encoder, chat, self.keep)
        every = [prompt for encoded in prompts.values() for prompt in encoded]
        check_vocabulary(subject, every)
        visible, factor = self._prepare_positions(subject, every)
        batches = long_prompts.plan_answers(prompts, visible, subject.batch_tokens, subject.model)
        reader = ModelReader(subject.model, subject.tokenizer)
        answers = answer_all(reader, prompts, batches, work, f"longbench {subject.name}")
        summary, rows = summarize(prompts, visible, answers)
        about = {"visible": visible, "rope_factor": factor, "trained_context": subject.trained_context}
        return Outcome({**about, **summary, "notes": notes}, {"answers": rows})

    def _prepare_positions(self, subject: Subject, prompts: "list[LongPrompt]") -> tuple[list[int], float | None]:
        """The visible contexts, ascending, and the factor by which the model's positions were extended for them, or None."""
        from contextwise.evaluation.answering.prompts import check_positions
        from contextwise.evaluation.measures.long_tasks.prompts import check_visible
        from contextwise.models.rope import extend_positions, rotary_modules

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
        further = ", or the rope method dynamic" if rotary else ", or a model with rotary positions"
        check_positions(subject, every, visible[-1], further)
        return visible, None

    @classmethod
    def table(cls, summary: dict[str, Any]) -> RenderableType:
        from contextwise.evaluation.measures.long_tasks.results import longbench_tables

        return longbench_tables(summary)


def read_range(text: str) -> tuple[int, int | None]:
    """``0-4000`` or ``8000-``: the least number of words, and the number below which they are.

    Raises:
        ConfigError: something else.
    """
    match = _RANGE.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2]) if match[2] else None) if match else (0, 0)
    if high is not None and high <= low:
        raise ConfigError(f"lengths is {text!r}; give words from-below, such as 0-4000, or 8000- for no limit")
    return low, high
