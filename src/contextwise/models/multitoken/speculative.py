"""Self-speculative decoding: the heads behind the first propose tokens, and the next forward pass checks them.

Each step, for every row (Stern et al. 2018, Section 3; Gloeckle et al. 2024, Section 3.2):

1. Feed the newest token x and the k <= n-1 tokens d_1 .. d_k proposed to follow it, in one forward pass.
2. The next-token head gives the greedy token after each of them: v_0 after x, v_j after d_j. The proposals are right as far
   as d_j = v_{j-1}; with the first a of them right, v_0 .. v_a are what greedy decoding would have given, one pass each.
3. Heads 2..n at the last right position propose the tokens after v_a.
4. Forget the keys and values of the k - a wrong proposals.

Rows accept different numbers of tokens. Step 4 moves each row's keys and values to the right by what it must forget, so that
the cache always is that of a left-padded batch, and rows that have ended leave it.

Shapes: A rows still being generated, S cached positions, k proposals, n heads.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList, StopStringCriteria
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.cache import ChunkLayer, ContextState

MOVABLE = (DynamicLayer, ChunkLayer, ContextState)
"""Layers of a cache whose rows can forget different numbers of tokens."""


@dataclass
class Acceptance:
    """How speculation went in one call of ``generate``."""

    steps: int = 0
    """Forward passes after that of the prompt."""
    row_steps: int = 0
    """The same, counted once for each row that was still being generated."""
    drafted: int = 0
    """Proposed tokens that were checked."""
    accepted: int = 0
    """Proposed tokens that became output. Each row's step gives one token more than it accepts."""

    @property
    def mean_accepted(self) -> float:
        """Accepted proposals for each step of a row; nan without a step."""
        return self.accepted / self.row_steps if self.row_steps else float("nan")

    @property
    def fraction(self) -> float:
        """Accepted proposals out of those checked; nan if none was."""
        return self.accepted / self.drafted if self.drafted else float("nan")


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What ``generate(..., speculative=True, return_dict_in_generate=True)`` returns.

    ``past_key_values`` is there for a single prompt only: rows of a batch end in different steps and leave the cache (also
    one that was given to ``generate``, which is of no use afterwards).
    """

    acceptance: Acceptance | None = None


def speculative_options(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``generate()`` that make it decode speculatively.

    transformers runs a function given as ``custom_generate`` after all its own preparation, but hands it neither the
    streamer nor the tokenizer that stop strings need; they are attached here.
    """
    options = dict(options)
    if options.get("custom_generate") is not None:
        raise ConfigError("speculative=True is a way of generating of its own; leave custom_generate away")
    if options.pop("synced_gpus", None):
        raise ConfigError(
            "speculative decoding takes a different number of steps on each process; set synced_gpus to False"
        )
    tokenizer, stop_strings = options.pop("tokenizer", None), options.pop("stop_strings", None)
    if stop_strings is not None:
        if tokenizer is None:
            raise ConfigError("stop_strings need the tokenizer; pass tokenizer= to generate()")
        criteria = options.get("stopping_criteria") or []
        options["stopping_criteria"] = StoppingCriteriaList(
            [*criteria, StopStringCriteria(tokenizer, stop_strings)]
        )
    return options | {"custom_generate": partial(speculative_decoding, streamer=options.get("streamer"))}


def speculative_decoding(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    streamer: Any = None,
    **model_kwargs: Any,
) -> torch.Tensor | SpeculativeOutput:
    """The decoding loop, called by ``generate()`` after its preparation.

    Logits processors are called as greedy decoding calls them; stopping criteria are asked about one row at a time, after
    each token.

    Returns:
        (B, length) tokens as greedy decoding returns them, or a :class:`SpeculativeOutput`.

    Raises:
        ConfigError: an option, a cache or a prompt that speculative decoding cannot keep to.
    """
    cache = model_kwargs.get("past_key_values")
    _check_options(generation_config, logits_processor, streamer, input_ids)
    _check_cache(cache, input_ids, model_kwargs.get("position_ids"))
    decoder = _Decoder(model, cache, input_ids, logits_processor, stopping_criteria, generation_config)
    decoder.streamer = streamer
    decoder.read_prompt(model_kwargs.get("attention_mask"), model_kwargs["position_ids"])
    while decoder.rows:
        decoder.step()
    if streamer is not None:
        streamer.end()
    model.last_acceptance = decoder.acceptance
    if not generation_config.return_dict_in_generate:
        return decoder.result()
    return SpeculativeOutput(
        sequences=decoder.result(),
        past_key_values=cache if len(input_ids) == 1 else None,
        acceptance=decoder.acceptance,
    )


class _Decoder:
    """The state of one call: what each row has so far, and a cache of the rows still being generated."""

    def __init__(
        self,
        model: Any,
        cache: Cache,
        input_ids: torch.Tensor,
        processor: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: Any,
    ) -> None:
        self.model, self.cache, self.processor, self.criteria = model, cache, processor, criteria
        self.n = model.config.future_tokens
        self.streamer: Any = None
        self.acceptance = Acceptance()
        self.limit: int = config.max_length
        # Greedy decoding pads a row behind its end only where there is an end-of-sequence token, and otherwise continues it.
        self.pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        count, prompt = input_ids.shape
        fill = int(config._pad_token_tensor) if self.pads else 0
        self.tokens_BL = input_ids.new_full((count, self.limit), fill)
        self.tokens_BL[:, :prompt] = input_ids
        self.prompt = prompt
        self.lengths = [prompt] * count
        self.ends: list[int | None] = [None] * count
        self.rows = list(range(count))

    def read_prompt(self, attention_mask: torch.Tensor | None, position_ids: torch.Tensor) -> None:
        """Feed the prompts; gives each row its first token and its first proposals."""
        prompts = self.tokens_BL[:, : self.prompt]
        known = self.cache.get_seq_length()
        states = self._read(prompts[:, known:], position_ids[:, known:], attention_mask)
        if len(prompts) > 1 and any(type(layer) not in MOVABLE for layer in self.cache.layers):
            raise ConfigError(
                "rows of a batch accept different numbers of tokens, which the cache of this backbone cannot follow; "
                "decode one prompt at a time"
            )
        self.mask_AS = torch.ones_like(prompts) if attention_mask is None else attention_mask
        # Token t of a row stands at position t + shift.
        self.shift_A = position_ids[:, -1].expand(len(prompts)) - (self.prompt - 1)
        last = torch.full_like(prompts[:, 0], prompts.shape[1] - known - 1)
        nothing = prompts[:, :0]
        best_A1 = self._greedy([states[0][:, -1:]], nothing)
        self.proposals_AN = self._propose(states, last)
        self._append(best_A1.tolist())
        self._keep_unfinished()

    def step(self) -> None:
        """One forward pass: check the proposals, keep the right ones, propose again."""
        lengths = [self.lengths[row] for row in self.rows]
        # Nothing is fed that could not be output: the last token of the longest allowed sequence needs no check.
        useful = [min(self.n - 1, self.limit - 1 - length) for length in lengths]
        k = max(useful)
        proposals = self.proposals_AN[:, :k]
        length_A1 = torch.tensor(lengths, device=proposals.device)[:, None]
        newest_A1 = self.tokens_BL[self.rows].gather(1, length_A1 - 1)
        index_AK = (length_A1 - 1 + torch.arange(k + 1, device=proposals.device)).clamp(max=self.limit - 2)
        self.mask_AS = torch.cat([self.mask_AS, self.mask_AS.new_ones(len(lengths), k + 1)], dim=1)
        states = self._read(
            torch.cat([newest_A1, proposals], dim=1), index_AK + self.shift_A[:, None], self.mask_AS
        )
        best_AK = self._greedy(states, proposals)
        right_A = (best_AK[:, :k] == proposals).long().cumprod(dim=1).sum(dim=1)
        self.proposals_AN = self._propose(states, right_A)
        verified = [best[: right + 1] for best, right in zip(best_AK.tolist(), right_A.tolist(), strict=True)]
        gained = self._append(verified)

        self.acceptance.steps += 1
        self.acceptance.row_steps += len(gained)
        self.acceptance.drafted += sum(useful)
        self.acceptance.accepted += sum(
            min(count, len(tokens) - 1) for count, tokens in zip(gained, verified, strict=True)
        )
        self.mask_AS = forget_rows(self.cache, self.mask_AS, [k + 1 - count for count in gained])
        self._keep_unfinished()

    def result(self) -> torch.Tensor:
        """All sequences, up to the end of the longest."""
        return self.tokens_BL[:, : max(end or 0 for end in self.ends)]

    def _read(self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> Any:
        """One forward pass: what each head's vocabulary matrix reads. Prompts may lie on another device than the model."""
        device = self.model.device
        return self.model.future_states(
            tokens.to(device),
            attention_mask=None if mask is None else mask.to(device),
            position_ids=positions.to(device),
            past_key_values=self.cache,
        )

    def _greedy(self, states: list[torch.Tensor], proposals_Ak: torch.Tensor) -> torch.Tensor:
        """The greedy token at each position of ``states``, the next-token head's first: (A, k + 1)."""
        logits = self.model.vocabulary_head(1)(states[0]).to(self.tokens_BL.device, torch.float32)
        best_AK = logits.argmax(dim=-1)
        if not self.processor:
            return best_AK
        # Processors may know the rows of the batch and count its tokens, so each is called as greedy decoding calls it: with
        # all rows, cut to one length. Of the result only the rows count that have a position to decide at this length.
        text_BL = self.tokens_BL.clone()
        places: dict[int, list[tuple[int, int]]] = {}
        for i, row in enumerate(self.rows):
            length = self.lengths[row]
            known = min(proposals_Ak.shape[1], self.limit - length)
            text_BL[row, length : length + known] = proposals_Ak[i, :known]
            for j in range(min(logits.shape[1], self.limit - length)):
                places.setdefault(length + j, []).append((i, j))
        for length, here in places.items():
            scores = logits.new_zeros(len(text_BL), logits.shape[-1])
            for i, j in here:
                scores[self.rows[i]] = logits[i, j]
            decided = self.processor(text_BL[:, :length], scores).argmax(dim=-1)
            for i, j in here:
                best_AK[i, j] = decided[self.rows[i]]
        return best_AK

    def _propose(self, states: list[torch.Tensor], at_A: torch.Tensor) -> torch.Tensor:
        """What heads 2..n expect behind the token that the first expects at index ``at_A``: (A, n - 1)."""
        at = at_A.to(states[0].device)
        rows = torch.arange(len(at), device=at.device)
        tokens = [
            self.model.vocabulary_head(i)(states[i - 1][rows, at]).argmax(dim=-1)
            for i in range(2, self.n + 1)
        ]
        return torch.stack(tokens, dim=1).to(at_A.device) if tokens else at_A.new_zeros(len(at_A), 0)

    def _append(self, verified: list[list[int]]) -> list[int]:
        """Append each row's tokens up to its end; returns how many each row took."""
        gained = []
        for row, tokens in zip(self.rows, verified, strict=True):
            before = self.lengths[row]
            for token in tokens:
                self.tokens_BL[row, self.lengths[row]] = token
                self.lengths[row] += 1
                if self.streamer is not None:
                    self.streamer.put(torch.tensor([token]))
                sequence = self.tokens_BL[row : row + 1, : self.lengths[row]]
                if self.ends[row] is None and bool(self.criteria(sequence, None).all()):
                    self.ends[row] = self.lengths[row]
                if self.lengths[row] == self.limit or (self.pads and self.ends[row] is not None):
                    break
            gained.append(self.lengths[row] - before)
        return gained

    def _unfinished(self, row: int) -> bool:
        if self.pads or self.lengths[row] == self.limit:
            return self.ends[row] is None
        ends = [end for end in self.ends if end is not None]
        return len(ends) < len(self.ends) or self.lengths[row] < max(ends)

    def _keep_unfinished(self) -> None:
        """Take the rows that have ended out of the batch."""
        kept = [i for i, row in enumerate(self.rows) if self._unfinished(row)]
        if 0 < len(kept) < len(self.rows):
            index = torch.tensor(kept, device=self.mask_AS.device)
            self.cache.batch_select_indices(index)
            self.mask_AS, self.shift_A = self.mask_AS[index], self.shift_A[index]
            self.proposals_AN = self.proposals_AN[index]
        self.rows = [self.rows[i] for i in kept]


def forget_rows(cache: Cache, mask_AS: torch.Tensor, surplus: list[int]) -> torch.Tensor:
    """Take each row's own number of last tokens out of a cache.

    Each row moves to the right over what it forgets, and padding comes in on its left: what remains is the cache of a
    left-padded batch.

    Args:
        mask_AS: 1 for the tokens in the cache, 0 for padding.
        surplus: how many tokens each row forgets.

    Returns:
        The mask of what is left, without columns that are padding in every row.
    """
    common = min(surplus)
    if common:
        cache.crop(-common)
        mask_AS = mask_AS[:, :-common]
    if max(surplus) == common:
        return mask_AS
    size = mask_AS.shape[1]
    surplus_A = torch.tensor(surplus, device=mask_AS.device) - common
    from_AS = torch.arange(size, device=mask_AS.device) - surplus_A[:, None]
    mask_AS = mask_AS.gather(1, from_AS.clamp(min=0)) * (from_AS >= 0)
    unused = int(mask_AS.any(dim=0).int().argmax())
    from_AS = from_AS[:, unused:].clamp(min=0)
    for layer in cache.layers:
        if isinstance(layer, ContextState):  # which moves the predictor's layers too
            layer.forget(surplus_A.to(layer.device), size - unused)
        elif not isinstance(layer, ChunkLayer):
            index = from_AS[:, None, :, None].to(layer.keys.device)
            layer.keys = layer.keys.take_along_dim(index, dim=2)
            layer.values = layer.values.take_along_dim(index, dim=2)
    return mask_AS[:, unused:]


def _check_options(config: Any, processor: LogitsProcessorList, streamer: Any, ids: torch.Tensor) -> None:
    if config.get_generation_mode() != GenerationMode.GREEDY_SEARCH:
        raise ConfigError(
            "speculative decoding is greedy: it takes no sampling, no beams and no assistant; "
            "set do_sample=False and num_beams=1, or leave speculative away"
        )
    recorded = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    for name in recorded if config.return_dict_in_generate else ():
        if getattr(config, name):
            raise ConfigError(
                f"speculative decoding does not record {name}; leave {name} or speculative away"
            )
    if any(isinstance(one, UnbatchedClassifierFreeGuidanceLogitsProcessor) for one in processor):
        raise ConfigError("speculative decoding takes no guidance; leave guidance_scale or speculative away")
    if streamer is not None and len(ids) > 1:
        raise ConfigError("a streamer takes one prompt at a time; leave it away for a batch")


def _check_cache(cache: Cache | None, input_ids: torch.Tensor, position_ids: torch.Tensor | None) -> None:
    if cache is None or not cache.is_croppable:
        raise ConfigError(
            "speculative decoding needs the dynamic cache; leave use_cache and cache_implementation at their defaults"
        )
    whole = position_ids is not None and position_ids.shape[1] == input_ids.shape[1]
    if not whole or cache.get_seq_length() >= input_ids.shape[1]:
        raise ConfigError(
            "speculative decoding needs input_ids: all tokens of the prompt, those already in past_key_values too"
        )
