"""Which questions are answered together."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from transformers import PreTrainedModel

from contextwise.evaluation.answering.batches import Batch
from contextwise.evaluation.measures.long_tasks.prompts import LongPrompt
from contextwise.evaluation.measures.long_tasks.results import shown_at
from contextwise.models.rope import follows_length, rotary_modules


def plan_answers(
    prompts: Mapping[str, Sequence[LongPrompt]],
    visible: Sequence[int],
    batch_tokens: int,
    model: PreTrainedModel | None = None,
) -> list[Batch]:
    """All the batches of a run, those with most to read first, so that one too large for the memory fails at once.

    A prompt that is wholly visible in several visible contexts is answered once. Where rotary frequencies follow the length, a
    batch holds prompts of one length beyond the trained one, so that no answer depends on what it is answered beside.

    The plan depends on nothing but the arguments. So an answer comes from the same batch, with the same rounding, however often
    a run is interrupted.
    """
    modules = [] if model is None else [module for _, module in rotary_modules(model)]
    trained = min((m.original_max_seq_len for m in modules if follows_length(m)), default=None)
    found = []
    for context in sorted(visible, reverse=True):
        for name, asked in prompts.items():
            alike: dict[tuple[int, int], list[int]] = defaultdict(list)
            for index, prompt in enumerate(asked):
                if shown_at(prompt, context, visible) == context:
                    new = prompt.item.new_tokens
                    length = len(prompt.prompt(context)) + new
                    alike[new, 0 if trained is None else max(trained, length)].append(index)
            for (new, _), indices in sorted(alike.items(), reverse=True):
                longest = max(len(asked[index].prompt(context)) for index in indices) + new
                rows = max(1, batch_tokens // longest)
                found += [
                    Batch(name, context, tuple(indices[first : first + rows]), new)
                    for first in range(0, len(indices), rows)
                ]
    return found
