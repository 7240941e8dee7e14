"""Answers to prompts: transformers' ``generate()`` on batches, and the log that an interrupted run goes on from."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.errors import CheckpointError, ConfigError, Interrupted
from contextwise.base.files import read_json, write_json
from contextwise.evaluation.generation import Sampling
from contextwise.evaluation.kernel.journal import Journal
from contextwise.models.rope import frequencies_for

UNFINISHED = ".unfinished"
SETTINGS, LOG = "settings.json", "answers.jsonl"

Key = tuple[str, int, int]
"""An answer's task, visible context, and question."""


class Prompted(Protocol):
    """A question as token ids, of which a model may see less than all."""

    @property
    def body(self) -> Sequence[int]:
        """What may be seen less of."""

    def prompt(self, visible: int) -> list[int]:
        """Token ids (T,) with ``visible`` tokens of the body."""


class Reader(Protocol):
    """Something that answers."""

    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[str]:
        """What is written behind each prompt of token ids, at most ``new_tokens`` tokens."""


class RefuseNaN(LogitsProcessor):
    """Stops an answer whose logits are no numbers: the likeliest token of those is always the first, and so just wrong."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """
        Raises:
            CheckpointError: a logit is NaN.
        """
        if torch.isnan(scores).any():
            raise CheckpointError(
                "the model's logits are not numbers (NaN), so it has no answers: its weights are damaged, or its number "
                "format is too narrow (try --dtype float32)"
            )
        return scores


class ModelReader:
    """A causal language model that always takes the likeliest token; prompts are padded on the left.

    Where rotary frequencies follow the length (dynamic NTK), they are those of the longest prompt and its answer from the
    first token on, so that cached keys and new queries are turned alike.

    Args:
        model: in evaluation mode.
        tokenizer: the model's.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer
        known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.pad = next(token for token in known if token is not None)

    @torch.no_grad()
    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[str]:
        """Raises :class:`~contextwise.base.errors.CheckpointError` where the model's logits are NaN."""
        rows = [torch.tensor(prompt) for prompt in prompts]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        with frequencies_for(self.model, ids.shape[1] + new_tokens):
            out = self.model.generate(
                ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                max_new_tokens=new_tokens,
                pad_token_id=self.pad,
                repetition_penalty=1.0,
                logits_processor=LogitsProcessorList([RefuseNaN()]),
                **Sampling(greedy=True).arguments(),
            )
        return self.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)


@dataclass(frozen=True)
class Batch:
    """Questions of one task that are answered together, at one visible context."""

    task: str
    visible: int
    indices: tuple[int, ...]
    new_tokens: int

    def keys(self) -> list[Key]:
        return [(self.task, self.visible, index) for index in self.indices]


def plan_batches(
    questions: Mapping[str, Sequence[Prompted]],
    new_tokens: dict[str, int],
    visible: Sequence[int],
    batch_tokens: int,
) -> list[Batch]:
    """All the batches of a run, those with most to read first, so that one too large for the memory fails at once.

    The plan depends on nothing but the arguments. So an answer comes from the same batch, with the same rounding, however often
    a run is interrupted.
    """
    found = []
    for context in sorted(visible, reverse=True):
        for task, encoded in questions.items():
            longest = max(len(question.prompt(context)) for question in encoded) + new_tokens[task]
            rows = max(1, batch_tokens // longest)
            for first in range(0, len(encoded), rows):
                chosen = tuple(range(first, min(first + rows, len(encoded))))
                found.append(Batch(task, context, chosen, new_tokens[task]))
    return found


class AnswerLog:
    """Answers so far, in ``PLACE.unfinished/``: a journal, and the settings of the run that it belongs to.

    Attributes:
        answers: (task, visible, index) -> the answer.
    """

    def __init__(self, journal: Journal, settings: dict[str, Any]) -> None:
        self.journal, self.settings = journal, settings
        self.folder = journal.path.parent
        self.answers: dict[Key, str] = {_key(row): row["answer"] for row in journal.rows.values()}

    @classmethod
    @contextlib.contextmanager
    def of(cls, place: Path, settings: dict[str, Any]) -> Iterator["AnswerLog"]:
        """Open the log of what will be written to ``place``, and hold it for this process.

        Raises:
            ConfigError: another process holds it, or what was begun there has other settings.
            DataError: it cannot be written, or read.
        """
        with Journal.opened(place.parent / f"{place.name}{UNFINISHED}" / LOG, _key) as journal:
            log = cls(journal, settings)
            if log.answers:
                log._check_settings()
            yield log

    def _check_settings(self) -> None:
        begun = read_json(self.folder / SETTINGS, "the settings of the unfinished run")
        wanted = json.loads(json.dumps(self.settings))
        if begun != wanted:
            different = [name for name in wanted if begun.get(name) != wanted[name]]
            raise ConfigError(
                f"{self.folder} holds unfinished answers to other questions, or of another model "
                f"({', '.join(different) or 'settings'} differ); choose another place with --out, or remove that folder"
            )

    def add(self, keys: Sequence[Key], answers: Sequence[str]) -> None:
        """Keep the answers of a batch."""
        if not self.answers:
            write_json(self.folder / SETTINGS, self.settings, "the answers")
        rows = [
            {"task": task, "visible": visible, "index": index, "answer": answer}
            for (task, visible, index), answer in zip(keys, answers, strict=True)
        ]
        self.journal.add(*rows)
        self.answers.update(zip(keys, answers, strict=True))

    def remove(self) -> None:
        """Remove the log; what it holds has been written elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _key(row: dict[str, Any]) -> Key:
    return row["task"], row["visible"], row["index"]


def answer_all(
    reader: Reader,
    questions: Mapping[str, Sequence[Prompted]],
    batches: Sequence[Batch],
    log: AnswerLog,
    *,
    advance: Callable[..., None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Answer what the log lacks.

    Args:
        advance: called with the number of answers, those from before among them.
        should_stop: asked before each batch.

    Raises:
        Interrupted: ``should_stop`` said so; the log has all the answers so far.
    """
    for batch in batches:
        keys = batch.keys()
        if not all(key in log.answers for key in keys):
            if should_stop is not None and should_stop():
                total = sum(len(each.indices) for each in batches)
                raise Interrupted(
                    f"stopped after {len(log.answers):,} of {total:,} answers; run the same command again to go on from there"
                )
            prompts = [questions[batch.task][index].prompt(batch.visible) for index in batch.indices]
            log.add(keys, reader.answer(prompts, batch.new_tokens))
        if advance is not None:
            advance(len(keys), note=f"{batch.task}, {batch.visible:,} visible")
