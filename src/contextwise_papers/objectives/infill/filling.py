"""Infilling: generation of the middle between a prefix and a suffix (objectives, Sections 6.2.3 and 6.2.5).

A decoder reads what :class:`~contextwise_papers.objectives.infilling.Arrangement` writes, up to where the middle begins; an
encoder-decoder reads ``prefix <extra_id_0> suffix`` and end-of-text, and writes ``<extra_id_0>`` and the middle. Prefix and
suffix are tokenized separately, as in training; if they are too long, the tokens farthest from the hole are omitted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.evaluation.kernel.subject import DEFAULT_CONTEXT_LIMIT
from contextwise.evaluation.scoring.windows import vocabulary_size
from contextwise.measures import Sampling, Subject, positions
from contextwise.models.loading import kind_of
from contextwise.objectives import SpecialToken, build_objective
from contextwise.settings import ConfigError
from contextwise_evals.answering.readers import ModelReader
from contextwise_papers.objectives import UL2, Infilling, SpanCorruption
from contextwise_papers.objectives.infilling import Arrangement
from contextwise_papers.objectives.spans import MODES, sentinel_tokens

FillingObjective = Infilling | SpanCorruption | UL2
_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Form:
    """Prompt format for filling a hole: ``write`` makes a prompt of a prefix's and a suffix's ids; ``stops`` end the middle.

    ``opening`` is what an encoder-decoder's decoder begins with; empty for a decoder, which continues its prompt.
    """

    name: Literal["PSM", "SPM", "sentinels"]
    write: Callable[[np.ndarray, np.ndarray], np.ndarray]
    stops: tuple[int, ...]
    opening: tuple[int, ...] = ()

    @property
    def special(self) -> int:
        """Number of tokens that the form adds to prefix and suffix."""
        return len(self.write(_NOTHING, _NOTHING))


class Prompt(NamedTuple):
    """Prompt for a hole, (T,) int64; the prefix's last token; numbers of tokens omitted at prefix's start and suffix's end."""

    ids: np.ndarray
    before: int | None
    dropped: tuple[int, int]


class Filling(NamedTuple):
    """Generated middle; ``complete`` if the model ended it, not the limit of new tokens."""

    text: str
    complete: bool


class Infiller:
    """Fills holes with a model.

    Args:
        spm: ask a decoder in the order suffix, prefix, middle.
        objective: objective of the model's training, if its tokens have unusual names.
        max_new_tokens: most tokens of a middle; in a decoder, where they share the prompt's positions, at most half of those.
        context: number of positions to use; by default all of the model's, or 1024 if it has no limit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        spm: bool = False,
        objective: FillingObjective | None = None,
        max_new_tokens: int = 100,
        context: int | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.form = form_of(model, tokenizer, objective, spm)
        if max_new_tokens < 1:
            raise ConfigError(f"{max_new_tokens} tokens were asked for; ask for at least 1")
        limit = positions(model.config)
        if context is not None and limit is not None and context > limit:
            raise ConfigError(
                f"the context is {context}, but the model has only {limit} positions; give at most {limit}"
            )
        context = context or limit or DEFAULT_CONTEXT_LIMIT
        self.room = context - self.form.special
        if self.form.opening:
            available = max_new_tokens if limit is None else limit - len(self.form.opening)
            self.new_tokens = min(max_new_tokens, available)
        else:
            self.new_tokens = min(max_new_tokens, context // 2)
            self.room -= self.new_tokens
        if self.room < 1 or self.new_tokens < 1:
            raise ConfigError(
                f"{context} positions are too few to fill a hole: {self.form.special} go to special tokens"
            )

    def prompt(self, prefix: str, suffix: str) -> Prompt:
        """Build the prompt for a hole. Special tokens that are written out in the texts are encoded as text.

        If the texts do not fit, each receives half of the room, plus the unused part of the other half.
        """
        prefix_ids, suffix_ids = (
            np.array(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids, np.int64)
            for text in (prefix, suffix)
        )
        first = min(len(prefix_ids), max(self.room - self.room // 2, self.room - len(suffix_ids)))
        second = min(len(suffix_ids), self.room - first)
        dropped = len(prefix_ids) - first, len(suffix_ids) - second
        prefix_ids, suffix_ids = prefix_ids[dropped[0] :], suffix_ids[:second]
        before = int(prefix_ids[-1]) if first else None
        return Prompt(self.form.write(prefix_ids, suffix_ids), before, dropped)

    def note(self, prompt: Prompt) -> str:
        """Describe the tokens omitted from a prompt, for the terminal; empty if none were."""
        ends = zip(("first", "last"), ("prefix", "suffix"), prompt.dropped, strict=True)
        parts = [f"the {side} {count:,} tokens of the {name}" for side, name, count in ends if count]
        fit = f"so that {self.room:,} tokens around the hole fit into the model's context"
        return f"note: {' and '.join(parts)} were left out, {fit}" if parts else ""

    def texts(self, prompt: Prompt, sampling: Sampling | None = None, samples: int = 1) -> Iterator[str]:
        """Generate several middles for a hole; the first does not depend on their number."""
        torch.manual_seed((sampling or Sampling()).seed)
        for _ in range(samples):
            yield self.fill([prompt], sampling)[0].text

    def fill(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Filling]:
        """Generate the middles of a batch; greedy ones (``sampling`` None) do not depend on the other prompts."""
        reader, ids = ModelReader(self.model, self.tokenizer), [prompt.ids.tolist() for prompt in prompts]
        form = self.form
        middles = reader.write(ids, self.new_tokens, stops=form.stops, opening=form.opening, sampling=sampling)
        fillings = []
        for prompt, new in zip(prompts, middles, strict=True):
            end = next((index for index, token in enumerate(new) if token in self.form.stops), None)
            # Decoded after the preceding token: many tokenizers drop the space of a text's first word.
            before = [] if prompt.before is None else [prompt.before]
            known = self.tokenizer.decode(before, skip_special_tokens=True)
            text = self.tokenizer.decode(before + new[:end], skip_special_tokens=True)
            fillings.append(Filling(text[len(known) :], end is not None))
        return fillings


def form_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    objective: FillingObjective | None = None,
    spm: bool = False,
) -> Form:
    """Determine the prompt format of a model; arguments and errors are those of :class:`Infiller`."""
    kind = kind_of(model.config)
    if kind == "encoder":
        raise ConfigError("the model is an encoder, which cannot fill a hole of unknown length; give another")
    rows = vocabulary_size(model)

    def ids(tokens: Sequence[SpecialToken]) -> list[int | None]:
        numbers = [token.of(tokenizer) for token in tokens]
        return [None if number is None or number >= rows else number for number in numbers]

    if kind == "decoder":
        return _middle_form(ids, tokenizer.eos_token_id, objective, spm)
    if spm:
        raise ConfigError("SPM is an order of a decoder's input, and the model is an encoder-decoder; leave it out")
    return _sentinel_form(ids, tokenizer.eos_token_id, objective, model.config)


_Ids = Callable[[Sequence[SpecialToken]], list[int | None]]


def _middle_form(ids: _Ids, end: int | None, objective: FillingObjective | None, spm: bool) -> Form:
    settings = objective if isinstance(objective, Infilling) else Infilling()
    first, second, third, *last = ids(settings.special_tokens)
    if first is None or second is None or third is None:
        names = ", ".join(token.text for token in settings.special_tokens[:3])
        raise ConfigError(
            f"the model cannot fill a hole: it has no tokens {names}; train it with the objective 'infilling'"
        )
    if isinstance(objective, Infilling) and settings.spm_share == float(not spm):
        trained, requested = ("PSM", "SPM") if spm else ("SPM", "PSM")
        raise ConfigError(
            f"the model was trained in the order {trained} alone (objective.spm_share is {settings.spm_share:g}), "
            f"but {requested} is asked for; ask for {trained}"
        )
    # Without an end token: the model must generate it, so the arrangement does not write it.
    arrangement = Arrangement([first, second, third], settings.spm == "marked")
    stops = tuple(token for token in (*last, end) if token is not None)
    if not stops:
        raise ConfigError("the model cannot fill a hole: it has neither a token that ends a middle nor end-of-text")
    return Form("SPM" if spm else "PSM", lambda p, s: arrangement.write(p, _NOTHING, s, spm), stops)


def _sentinel_form(ids: _Ids, end: int | None, objective: FillingObjective | None, config: Any) -> Form:
    spans = objective if isinstance(objective, SpanCorruption | UL2) else SpanCorruption()
    numbers = ids(sentinel_tokens(spans.sentinels))
    if numbers[0] is None or end is None:
        raise ConfigError(
            "the model cannot fill a hole: it has no token <extra_id_0>, or no end-of-text; train it with the objective "
            "'spans' or 'ul2'"
        )
    sentinels = [number for number in numbers if number is not None]
    # UL2's models expect a mode token first. A hole inside a text is a short span: mode R, if it was trained.
    mode_tokens = [] if isinstance(objective, SpanCorruption) else [SpecialToken(MODES[name]) for name in "RXS"]
    mode = [number for number in ids(mode_tokens) if number is not None][:1]

    def write(prefix: np.ndarray, suffix: np.ndarray) -> np.ndarray:
        parts = [mode, prefix, sentinels[:1], suffix, [end]]
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])

    start = config.decoder_start_token_id
    return Form("sentinels", write, (end, *sentinels), (end if start is None else start, sentinels[0]))


def filling_objective(subject: Subject) -> FillingObjective | None:
    """Infilling objective in the recipe of a run, or of its replayed corpus; None for other models and runs."""
    recipe = subject.run.recipe() if subject.run else {}
    replay = (recipe.get("data") or {}).get("replay") or {}
    written = [each for each in (recipe.get("objective"), replay.get("objective")) if isinstance(each, dict)]
    singles = [single for each in written for single in build_objective(**each).singles]
    return next((single for single in singles if isinstance(single, FillingObjective)), None)
