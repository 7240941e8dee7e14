"""Self-speculative decoding: heads 2..n propose tokens, and the next forward pass verifies them.

Each step, for every row (Stern et al. 2018, Section 3; Gloeckle et al. 2024, Section 3.2):

1. Run the newest token x and the k <= n-1 tokens d_1 .. d_k proposed after it in one forward pass.
2. The next-token head predicts the greedy token after each of them: v_0 after x, v_j after d_j. Proposals are accepted up to
   the first d_j != v_{j-1}; if the first a are accepted, v_0 .. v_a are the tokens of greedy decoding in a + 1 passes.
3. Heads 2..n at the last accepted position propose the tokens after v_a.
4. Remove the keys and values of the k - a rejected proposals.

Rows accept different numbers of tokens. Step 4 moves each row's keys and values to the right by the number of its rejected
tokens, so that the cache is always that of a left-padded batch. Finished rows are removed from it.

Shapes: A rows still being generated, S cached positions, k proposals, n heads.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
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
    """Counts of proposed and accepted tokens in one call of ``generate``."""

    steps: int = 0  # forward passes after that of the prompt
    row_steps: int = 0  # forward passes times unfinished rows
    drafted: int = 0  # verified proposals
    accepted: int = 0  # accepted proposals; each step of a row outputs one token more than it accepts

    @property
    def mean_accepted(self) -> float:
        """Accepted proposals per step of a row; nan without steps."""
        return self.accepted / self.row_steps if self.row_steps else float("nan")

    @property
    def fraction(self) -> float:
        """Accepted proposals as a fraction of verified ones; nan without any."""
        return self.accepted / self.drafted if self.drafted else float("nan")


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """Output of ``generate(..., speculative=True, return_dict_in_generate=True)``.

    ``past_key_values`` is returned for a single prompt only: rows of a batch finish in different steps and are removed from
    the cache (a cache passed to ``generate`` cannot be used afterwards).
    """

    acceptance: Acceptance | None = None


def speculative_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which ``generate()`` decodes speculatively.

    transformers runs a function given as ``custom_generate`` after its own preparation, but passes it neither the streamer
    nor the tokenizer that stop strings need; this function adds them.
    """
    options = dict(options)
    if options.get("custom_generate") is not None:
        raise ConfigError("speculative=True cannot be combined with custom_generate; remove custom_generate")
    if options.pop("synced_gpus", None):
        raise ConfigError(
            "speculative decoding takes a different number of steps on each process; set synced_gpus to False"
        )
    tokenizer, stop_strings = options.pop("tokenizer", None), options.pop("stop_strings", None)
    if stop_strings is not None:
        if tokenizer is None:
            raise ConfigError("stop_strings need the tokenizer; pass tokenizer= to generate()")
        criteria = [*(options.get("stopping_criteria") or []), StopStringCriteria(tokenizer, stop_strings)]
        options["stopping_criteria"] = StoppingCriteriaList(criteria)
    return options | {"custom_generate": partial(speculative_decoding, streamer=options.get("streamer"))}


def speculative_decoding(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Tensor | SpeculativeOutput:
    """Run the decoding loop, called by ``generate()`` after its preparation.

    Logits processors are called as in greedy decoding; stopping criteria are called for one row at a time, after each
    token.

    Returns:
        (B, length) tokens as greedy decoding returns them, or a :class:`SpeculativeOutput`.

    Raises:
        ConfigError: speculative decoding does not support an option, the cache or the prompt.
    """
    cache = model_kwargs.get("past_key_values")
    _check_options(generation_config, logits_processor, streamer, input_ids)
    _check_cache(cache, input_ids, model_kwargs.get("position_ids"))
    decoder = _Decoder(model, cache, input_ids, logits_processor, stopping_criteria, generation_config, streamer)
    decoder.read_prompt(model_kwargs.get("attention_mask"), model_kwargs["position_ids"])
    while decoder.rows:
        decoder.step()
    if streamer is not None:
        streamer.end()
    model.last_acceptance = decoder.acceptance
    # All sequences, up to the end of the longest.
    sequences = decoder.tokens_BL[:, : max(end or 0 for end in decoder.ends)]
    if not generation_config.return_dict_in_generate:
        return sequences
    kept = cache if len(input_ids) == 1 else None
    return SpeculativeOutput(sequences=sequences, past_key_values=kept, acceptance=decoder.acceptance)


class _Decoder:
    """The state of one call: the tokens of each row so far, and a cache of the unfinished rows."""

    def __init__(
        self,
        model: Any,
        cache: Cache,
        input_ids: Tensor,
        processor: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: Any,
        streamer: Any,
    ) -> None:
        self.model, self.cache, self.processor, self.criteria = model, cache, processor, criteria
        self.n, self.limit, self.streamer = model.config.future_tokens, config.max_length, streamer
        self.acceptance = Acceptance()
        # Greedy decoding pads a finished row only if there is an end-of-sequence token, and otherwise continues it.
        self.pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        count, self.prompt = input_ids.shape
        fill = int(config._pad_token_tensor) if self.pads else 0
        self.tokens_BL = input_ids.new_full((count, self.limit), fill)
        self.tokens_BL[:, : self.prompt] = input_ids
        self.lengths = [self.prompt] * count
        self.ends: list[int | None] = [None] * count
        self.rows = list(range(count))

    def read_prompt(self, attention_mask: Tensor | None, position_ids: Tensor) -> None:
        """Process the prompts, and add each row's first token and first proposals."""
        prompts = self.tokens_BL[:, : self.prompt]
        known = self.cache.get_seq_length()
        states = self._read(prompts[:, known:], position_ids[:, known:], attention_mask)
        if len(prompts) > 1 and any(type(layer) not in MOVABLE for layer in self.cache.layers):
            raise ConfigError(
                "rows of a batch accept different numbers of tokens, which the cache of this backbone does not support; "
                "decode one prompt at a time"
            )
        self.mask_AS = torch.ones_like(prompts) if attention_mask is None else attention_mask
        # Token t of a row has position t + shift.
        self.shift_A = position_ids[:, -1].expand(len(prompts)) - (self.prompt - 1)
        last = torch.full_like(prompts[:, 0], prompts.shape[1] - known - 1)
        best_A1 = self._greedy([states[0][:, -1:]], prompts[:, :0])
        self.proposals_AN = self._propose(states, last)
        self._append(best_A1.tolist())
        self._keep_unfinished()

    def step(self) -> None:
        """Run one forward pass: verify the proposals, keep the accepted ones, propose again."""
        lengths = [self.lengths[row] for row in self.rows]
        # Verify only tokens that could be output: the last token of the longest allowed sequence needs no verification.
        useful = [min(self.n - 1, self.limit - 1 - length) for length in lengths]
        k = max(useful)
        proposals = self.proposals_AN[:, :k]
        length_A1 = torch.tensor(lengths, device=proposals.device)[:, None]
        newest_A1 = self.tokens_BL[self.rows].gather(1, length_A1 - 1)
        index_AK = (length_A1 - 1 + torch.arange(k + 1, device=proposals.device)).clamp(max=self.limit - 2)
        self.mask_AS = torch.cat([self.mask_AS, self.mask_AS.new_ones(len(lengths), k + 1)], dim=1)
        tokens_AK = torch.cat([newest_A1, proposals], dim=1)
        states = self._read(tokens_AK, index_AK + self.shift_A[:, None], self.mask_AS)
        best_AK = self._greedy(states, proposals)
        right_A = (best_AK[:, :k] == proposals).long().cumprod(dim=1).sum(dim=1)
        self.proposals_AN = self._propose(states, right_A)
        verified = [best[: right + 1] for best, right in zip(best_AK.tolist(), right_A.tolist(), strict=True)]
        gained = self._append(verified)

        counts = self.acceptance
        counts.steps += 1
        counts.row_steps += len(gained)
        counts.drafted += sum(useful)
        counts.accepted += sum(min(n, len(tokens) - 1) for n, tokens in zip(gained, verified, strict=True))
        self.mask_AS = forget_rows(self.cache, self.mask_AS, [k + 1 - count for count in gained])
        self._keep_unfinished()

    def _read(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Any:
        """Run one forward pass: the input of each head's vocabulary matrix. Prompts may be on another device."""
        device = self.model.device
        return self.model.future_states(
            tokens.to(device),
            attention_mask=None if mask is None else mask.to(device),
            position_ids=positions.to(device),
            past_key_values=self.cache,
        )

    def _greedy(self, states: list[Tensor], proposals_Ak: Tensor) -> Tensor:
        """The greedy token at each position of ``states``, the next-token head's first: (A, k + 1)."""
        logits = self.model.vocabulary_head(1)(states[0]).to(self.tokens_BL.device, torch.float32)
        best_AK = logits.argmax(dim=-1)
        if not self.processor:
            return best_AK
        # Processors may depend on the rows of the batch and its length, so each is called as in greedy decoding: with all
        # rows, cut to one length. Only the results of rows with a token to decide at this length are used.
        text_BL = self.tokens_BL.clone()
        undecided: dict[int, list[tuple[int, int]]] = {}
        for i, row in enumerate(self.rows):
            length = self.lengths[row]
            known = min(proposals_Ak.shape[1], self.limit - length)
            text_BL[row, length : length + known] = proposals_Ak[i, :known]
            for j in range(min(logits.shape[1], self.limit - length)):
                undecided.setdefault(length + j, []).append((i, j))
        for length, positions in undecided.items():
            scores = logits.new_zeros(len(text_BL), logits.shape[-1])
            for i, j in positions:
                scores[self.rows[i]] = logits[i, j]
            decided = self.processor(text_BL[:, :length], scores).argmax(dim=-1)
            for i, j in positions:
                best_AK[i, j] = decided[self.rows[i]]
        return best_AK

    def _propose(self, states: list[Tensor], at_A: Tensor) -> Tensor:
        """The tokens that heads 2..n predict at index ``at_A``: (A, n - 1)."""
        at = at_A.to(states[0].device)
        rows = torch.arange(len(at), device=at.device)
        head = self.model.vocabulary_head
        tokens = [head(i)(states[i - 1][rows, at]).argmax(dim=-1) for i in range(2, self.n + 1)]
        return torch.stack(tokens, dim=1).to(at_A.device) if tokens else at_A.new_zeros(len(at_A), 0)

    def _append(self, verified: list[list[int]]) -> list[int]:
        """Append each row's tokens up to its end, and return the number of appended tokens per row."""
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
        """Remove finished rows from the batch."""
        kept = [i for i, row in enumerate(self.rows) if self._unfinished(row)]
        if 0 < len(kept) < len(self.rows):
            index = torch.tensor(kept, device=self.mask_AS.device)
            self.cache.batch_select_indices(index)
            self.mask_AS, self.shift_A = self.mask_AS[index], self.shift_A[index]
            self.proposals_AN = self.proposals_AN[index]
        self.rows = [self.rows[i] for i in kept]


def forget_rows(cache: Cache, mask_AS: Tensor, surplus: list[int]) -> Tensor:
    """Remove a number of last tokens per row from a cache, which becomes that of a left-padded batch.

    Args:
        mask_AS: 1 for the tokens in the cache, 0 for padding.
        surplus: number of tokens to remove from each row; the row moves to the right by it.

    Returns:
        The mask of the remaining tokens, without columns that are padding in every row.
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
        if isinstance(layer, ContextState):  # it also moves the predictor's layers
            layer.forget(surplus_A.to(layer.device), size - unused)
        elif not isinstance(layer, ChunkLayer):
            index = from_AS[:, None, :, None].to(layer.keys.device)
            layer.keys = layer.keys.take_along_dim(index, dim=2)
            layer.values = layer.values.take_along_dim(index, dim=2)
    return mask_AS[:, unused:]


def _check_options(config: Any, processor: LogitsProcessorList, streamer: Any, ids: Tensor) -> None:
    if config.get_generation_mode() != GenerationMode.GREEDY_SEARCH:
        raise ConfigError(
            "speculative decoding is greedy: it supports no sampling, no beams and no assistant; "
            "set do_sample=False and num_beams=1, or remove speculative"
        )
    recorded = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    for name in recorded if config.return_dict_in_generate else ():
        if getattr(config, name):
            raise ConfigError(f"speculative decoding does not record {name}; remove {name} or speculative")
    if any(isinstance(step, UnbatchedClassifierFreeGuidanceLogitsProcessor) for step in processor):
        raise ConfigError("speculative decoding supports no guidance; remove guidance_scale or speculative")
    if streamer is not None and len(ids) > 1:
        raise ConfigError("a streamer accepts one prompt at a time; remove it for a batch")


def _check_cache(cache: Cache | None, input_ids: Tensor, position_ids: Tensor | None) -> None:
    if cache is None or not cache.is_croppable:
        raise ConfigError(
            "speculative decoding needs the dynamic cache; leave use_cache and cache_implementation at their defaults"
        )
    whole = position_ids is not None and position_ids.shape[1] == input_ids.shape[1]
    if not whole or cache.get_seq_length() >= input_ids.shape[1]:
        raise ConfigError(
            "speculative decoding needs input_ids: all tokens of the prompt, those already in past_key_values too"
        )
