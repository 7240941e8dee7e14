"""A model's answers to the questions of MT-Bench or AlpacaEval, in the files that their judges read.

The turns of a question are one conversation: what the model has read of it stays in its key-value cache, and the next turn
reads only what is new (:class:`Speaker`). Each answer is kept as soon as it is there.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

from contextwise.base.errors import ConfigError, Interrupted
from contextwise.base.files import atomic_write, write_json
from contextwise.base.progress import progress_bar
from contextwise.data.sources.alpaca import CHAT_TEMPLATE
from contextwise.evaluation.answering.batches import RefuseNaN
from contextwise.evaluation.answering.measuring import weights_fingerprint
from contextwise.evaluation.generation import Sampling, allowed_new_tokens
from contextwise.evaluation.kernel.journal import Journal, content_key
from contextwise.evaluation.measures.judging.files import Benchmark, Question, read_questions, read_rows
from contextwise.evaluation.opening import default_destination, model_on_device, tell_of_contexts
from contextwise.models import load_tokenizer
from contextwise.models.contextlm.cache import ChunkLayer, ContextState
from contextwise.models.rope import follows_length, frequencies_for, rotary_modules

# FastChat, ``llm_judge/common.py``; other categories have 0.7.
TEMPERATURES = dict.fromkeys(("extraction", "math", "coding", "reasoning"), 0.0) | dict.fromkeys(
    ("stem", "humanities"), 0.1
)
OTHER_TEMPERATURE = 0.7
_CROPPED = (DynamicLayer, ChunkLayer, ContextState)
NAMES = {"mt-bench": "mt-bench-answers.jsonl", "alpaca-eval": "alpaca-eval-outputs.json"}


@dataclass(frozen=True)
class Answering:
    """How questions are answered.

    Attributes:
        max_new_tokens: of one turn, at most.
        temperature: 0 takes the likeliest token; ``published`` is MT-Bench's temperature of the question's category.
        template: ``chat``: the tokenizer's own; ``alpaca``: the published prompt; ``auto``: its own, where it has one.
        seed: of the draws, anew for each question.

    Raises:
        ConfigError: a value is out of its range.
    """

    max_new_tokens: int = 1024
    temperature: float | Literal["published"] = 0.0
    template: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.template not in ("auto", "chat", "alpaca"):
            raise ConfigError(f"--template is {self.template!r}; it must be one of auto, chat, alpaca")
        if self.temperature != "published" and not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature is {self.temperature}; give 0, a positive number, or published")
        if self.max_new_tokens < 1:
            raise ConfigError(f"--max-new-tokens is {self.max_new_tokens}; ask for at least 1")

    def sampling(self, question: Question) -> Sampling:
        """How the tokens of an answer to this question are chosen; each question has draws of its own."""
        value = self.temperature
        if value == "published":
            value = TEMPERATURES.get(question.category, OTHER_TEMPERATURE)
        seed = int(content_key(seed=self.seed, turns=question.turns)[:8], 16)
        return Sampling(temperature=value or 1.0, seed=seed, greedy=value == 0)


class Speaker:
    """Holds conversations with a causal language model.

    Args:
        model: in evaluation mode.
        tokenizer: the model's.
        template: ``auto``, ``chat`` or ``alpaca``, as :class:`Answering` has it.
        reuse: read only what is new in a later turn; False reads the whole conversation again.

    Raises:
        ConfigError: its chat template is asked for, and it has none.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        template: str = "auto",
        reuse: bool = True,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        # Frequencies that follow the length are others in a later turn, which cached keys cannot follow.
        self.reuse = reuse and not any(follows_length(module) for _, module in rotary_modules(model))
        if template == "chat" and tokenizer.chat_template is None:
            raise ConfigError("the model's tokenizer has no chat template; give --template alpaca")
        own = template != "alpaca" and tokenizer.chat_template is not None
        self.template = tokenizer.chat_template if own else CHAT_TEMPLATE
        own_ends = model.generation_config.eos_token_id
        ends = [*(own_ends if isinstance(own_ends, list) else [own_ends]), tokenizer.eos_token_id]
        self.ends = sorted({end for end in ends if end is not None})
        known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.pad = next(token for token in known if token is not None)

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the next answer begins.

        Raises:
            ConfigError: the model's chat template refuses the conversation.
        """
        try:
            read = self.tokenizer.apply_chat_template(
                list(messages), chat_template=self.template, add_generation_prompt=True, return_dict=True
            )
        except (TemplateError, TypeError) as error:
            raise ConfigError(
                f"the model's chat template refuses the conversation ({str(error)[:100]}); give --template alpaca"
            ) from None
        return list(read["input_ids"])

    @torch.no_grad()
    def answer(
        self, turns: Sequence[str], max_new_tokens: int, sampling: Sampling
    ) -> tuple[list[str], list[str | None]]:
        """Answer the turns of a conversation, one after the other.

        Returns:
            A text for each turn; and for each what went wrong, or None. A turn that is too long for the model's positions has
            an empty text, as have those behind it.

        Raises:
            CheckpointError: the model's logits are not numbers.
            ConfigError: as :meth:`prompt` does.
        """
        messages: list[dict[str, str]] = []
        texts: list[str] = []
        problems: list[str | None] = []
        cache: Cache | None = None
        read: list[int] = []
        torch.manual_seed(sampling.seed)
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            ids = self.prompt(messages)
            try:
                count = allowed_new_tokens(self.model, len(ids), max_new_tokens)
            except ConfigError as error:
                left = len(turns) - len(texts)
                return [*texts, *[""] * left], [*problems, *[str(error)] * left]
            cache = _common(cache, read, ids) if self.reuse else None
            written, cache = self._generate(ids, cache, count, sampling)
            read = [*ids, *written]
            text = self.tokenizer.decode(written, skip_special_tokens=True).strip()
            messages.append({"role": "assistant", "content": text})
            texts.append(text)
            problems.append(None)
        return texts, problems

    def _generate(
        self, ids: list[int], cache: Cache | None, count: int, sampling: Sampling
    ) -> tuple[list[int], Cache | None]:
        """New tokens behind ``ids``, of which ``cache`` has read the first ones; and the cache that has read them too."""
        rows = torch.tensor([ids], device=self.model.device)
        with frequencies_for(self.model, len(ids) + count):
            out = self.model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                past_key_values=cache,
                max_new_tokens=count,
                pad_token_id=self.pad,
                eos_token_id=self.ends or None,
                repetition_penalty=1.0,
                logits_processor=LogitsProcessorList([RefuseNaN()]),
                return_dict_in_generate=True,
                **sampling.arguments(),
            )
        return out.sequences[0, len(ids) :].tolist(), out.past_key_values


def _common(cache: Cache | None, read: Sequence[int], ids: Sequence[int]) -> Cache | None:
    """The cache of ``read``, shortened to what ``ids`` begins with; None where nothing of it can be used.

    An answer's text may have other tokens when it is read again than those it was written with, so the two are compared. One
    token at least stays to be read: its logits choose the next.
    """
    if cache is None or not all(
        isinstance(layer, _CROPPED) and not getattr(layer, "is_sliding", False) for layer in cache.layers
    ):
        return None
    length = cache.get_seq_length()
    same = 0
    for old, new in zip(read[:length], ids[:-1], strict=False):
        if old != new:
            break
        same += 1
    if same == 0:
        return None
    cache.crop(same - length)
    return cache


def answer_questions(
    source: str,
    questions_file: Path,
    settings: Answering,
    *,
    out: Path | None = None,
    model_id: str | None = None,
    limit: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    should_stop: Callable[[], bool] | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Let a model answer a file of questions; a stopped call goes on where it was, a finished one is not made again.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        out: file to write; by default ``mt-bench-answers.jsonl`` or ``alpaca-eval-outputs.json`` where the run's
            evaluations are.
        model_id: what the answers call the model; the name of its folder if not given.
        limit: the first so many questions only.
        should_stop: asked before each question.

    Returns:
        The file, and its rows. A row has ``errors`` where a turn was too long for the model.

    Raises:
        ConfigError: a setting is wrong, or ``out`` holds something else.
        DataError: the questions cannot be read.
        CheckpointError: there is no such model, or its logits are not numbers.
        Interrupted: ``should_stop`` said so; what was answered is kept.
    """
    source = str(Path(source))
    benchmark, questions = read_questions(questions_file)
    questions = questions[:limit]
    out = out or default_destination(source, NAMES[benchmark])
    tokenizer = load_tokenizer(source)
    model = model_on_device(source, dtype, device)
    tell_of_contexts(source, model)
    speaker = Speaker(model, tokenizer, settings.template)
    name = model_id or Path(source).resolve().name
    shared = {
        "model": name,
        "weights": weights_fingerprint(model),
        "dtype": str(model.dtype),
        "template": speaker.template,
        **asdict(settings),
    }
    keys = [content_key(turns=question.turns, **shared, category=question.category) for question in questions]
    if (finished := _finished(out, keys)) is not None:
        return out, finished
    with Journal.opened(out.with_name(f"{out.name}.unfinished")) as journal:
        with progress_bar(f"answers of {name}", len(questions), "questions") as advance:
            for key, question in zip(keys, questions, strict=True):
                if key not in journal.rows:
                    _check_stop(should_stop, len(journal.rows), len(questions))
                    sampling = settings.sampling(question)
                    texts, problems = speaker.answer(question.turns, settings.max_new_tokens, sampling)
                    journal.add({"key": key, **_row(benchmark, question, name, key, texts, problems)})
                advance()
        rows = [
            {field: value for field, value in journal.rows[key].items() if field != "key"} for key in keys
        ]
        _write(out, benchmark, rows)
        journal.path.unlink()
    return out, rows


def _check_stop(should_stop: Callable[[], bool] | None, done: int, total: int) -> None:
    if should_stop is not None and should_stop():
        raise Interrupted(
            f"stopped after {done:,} of {total:,} questions; run the same command again to go on from there"
        )


def _row(
    benchmark: Benchmark,
    question: Question,
    model: str,
    key: str,
    texts: list[str],
    problems: list[str | None],
) -> dict[str, Any]:
    """A row of the file that the benchmark's own judge reads; ``errors`` and AlpacaEval's ``answer_id`` are ours."""
    found = {"errors": problems} if any(problems) else {}
    if benchmark == "alpaca-eval":
        return {
            "dataset": question.category,
            "instruction": question.turns[0],
            "output": texts[0],
            "generator": model,
            "answer_id": key[:22],
            **found,
        }
    return {
        "question_id": question.id,
        "answer_id": key[:22],
        "model_id": model,
        "choices": [{"index": 0, "turns": texts}],
        "tstamp": time.time(),
        **found,
    }


def _finished(out: Path, keys: Sequence[str]) -> list[dict[str, Any]] | None:
    """The rows that are there already for these questions, this model and these settings; None if there is no file.

    Raises:
        ConfigError: the file holds something else.
    """
    if not out.exists():
        return None
    rows = [row for _, row in read_rows(out)] if out.is_file() else []
    if [row.get("answer_id") for row in rows] != [key[:22] for key in keys]:
        raise ConfigError(
            f"{out} holds something else than the answers of this model to these questions with these settings; "
            "choose another --out, or remove it"
        )
    return rows


def _write(out: Path, benchmark: Benchmark, rows: list[dict[str, Any]]) -> None:
    if benchmark == "alpaca-eval":
        write_json(out, rows, "the answers")
    else:
        atomic_write(out, "".join(json.dumps(row) + "\n" for row in rows), "the answers")
