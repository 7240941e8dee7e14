"""Self-speculative decoding: heads 2..n propose tokens, and the next forward pass verifies them.

Each step, for every row (Stern et al. 2018, Section 3; Gloeckle et al. 2024, Section 3.2):

1. Run the newest token x and the k <= n-1 tokens d_1 .. d_k proposed after it in one forward pass.
2. The next-token head predicts the greedy token after each of them: v_0 after x, v_j after d_j. Proposals are accepted up to
   the first d_j != v_{j-1}; if the first a are accepted, v_0 .. v_a are the tokens of greedy decoding in a + 1 passes.
3. Heads 2..n at the last accepted position propose the tokens after v_a.
4. Remove the keys and values of the k - a rejected proposals.

The rows of a batch go on together: a is the least number of accepted proposals among the unfinished rows. Where steps can be
recorded (:mod:`contextwise.models.decoding`), later steps run only the operations of the first, over a static cache, and each
row accepts its own number of tokens.

Shapes: B rows, S cached positions, k proposals, n heads, P positions of the prompt.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, LogitsProcessorList, StaticCache, StoppingCriteriaList
from transformers.cache_utils import Cache, StaticLayer
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.stopping_criteria import MaxLengthCriteria

from contextwise.base.errors import ConfigError
from contextwise.models.decoding import LEAST_TOKENS, can_record, record
from contextwise.models.families import CACHE

SLACK = 1.0
"""Slots of the cache of several rows for the gaps between their tokens, as a share of the new tokens."""


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


def speculative_options(options: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return the arguments with which ``generate()`` decodes speculatively; ``config`` is the configuration they change."""
    # transformers does not pass a streamer, or the tokenizer that stop strings need, to a function for custom_generate.
    given = {name: options.get(name) for name in ("custom_generate", "streamer", "stop_strings")}
    given["stop_strings"] = given["stop_strings"] or config.stop_strings
    if (name := next((name for name, value in given.items() if value is not None), None)) is not None:
        raise ConfigError(f"speculative decoding supports no {name}; remove {name} or speculative")
    if options.get("synced_gpus"):
        raise ConfigError(
            "speculative decoding takes a different number of steps on each process; set synced_gpus to False"
        )
    options = {name: value for name, value in options.items() if name != "synced_gpus"}
    return options | {"custom_generate": speculative_decoding}


def speculative_decoding(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    **model_kwargs: Any,
) -> Tensor:
    """Run the decoding loop, called by ``generate()`` after its preparation.

    Logits processors are called as in greedy decoding; stopping criteria are called for one row at a time, after each token.
    Returns (B, length) tokens as greedy decoding does.
    """
    cache = model_kwargs.get(CACHE)
    _check_options(generation_config, logits_processor)
    _check_cache(cache, input_ids, model_kwargs.get("position_ids"))
    fresh = isinstance(cache, DynamicCache) and cache.get_seq_length() == 0
    kind = (
        _RecordedDecoder
        if fresh and not logits_processor and _recordable(model, input_ids, generation_config)
        else _Decoder
    )
    decoder = kind(model, cache, input_ids, logits_processor, stopping_criteria, generation_config)
    decoder.read_prompt(model_kwargs.get("attention_mask"), model_kwargs["position_ids"])
    while decoder.rows:
        decoder.step()
    model.last_acceptance = decoder.acceptance
    # All sequences, up to the end of the longest.
    return decoder.tokens_BL[:, : max(end or 0 for end in decoder.ends)]


class _Decoder:
    """The state of one call: the tokens of each row so far, a cache, and the numbers of the unfinished rows."""

    def __init__(
        self,
        model: Any,
        cache: Cache,
        input_ids: Tensor,
        processor: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: Any,
    ) -> None:
        self.model, self.cache, self.processor = model, cache, processor
        self.n, self.limit = model.config.future_tokens, config.max_length
        self.criteria = StoppingCriteriaList(
            each for each in criteria if type(each) is not MaxLengthCriteria or each.max_length < self.limit
        )
        self.acceptance = Acceptance()
        # Greedy decoding pads a finished row only if there is an end-of-sequence token, and otherwise continues it.
        self.pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        count, self.prompt = input_ids.shape
        self.fill = int(config._pad_token_tensor) if self.pads else 0
        self.tokens_BL = input_ids.new_full((count, self.limit), self.fill)
        self.tokens_BL[:, : self.prompt] = input_ids
        self.lengths = [self.prompt] * count
        self.ends: list[int | None] = [None] * count
        self.rows = list(range(count))

    def read_prompt(self, attention_mask: Tensor | None, position_ids: Tensor) -> None:
        """Process the prompts, and add each row's first token and first proposals."""
        prompts = self.tokens_BL[:, : self.prompt]
        known = self.cache.get_seq_length()
        states = self._read(prompts[:, known:], position_ids[:, known:], attention_mask)
        self.mask_BP = torch.ones_like(prompts) if attention_mask is None else attention_mask
        # Token t of a row has position t + shift.
        self.shift_B = position_ids[:, -1].expand(len(prompts)) - (self.prompt - 1)
        last = torch.full_like(prompts[:, 0], prompts.shape[1] - known - 1)
        best_B1 = self._greedy([states[0][:, -1:]], prompts[:, :0])
        self.proposals_BN = self._propose(states, last)
        self._append(best_B1.tolist())
        self._keep_unfinished()

    def step(self) -> None:
        """Run one forward pass: verify the proposals, keep the accepted ones, propose again."""
        useful, length = self._useful(), self.lengths[self.rows[0]]  # of all unfinished rows
        k = useful[0]
        proposals_BK = self.proposals_BN[:, :k]
        tokens_BK = torch.cat([self.tokens_BL[:, length - 1 : length], proposals_BK], dim=1)
        index_K = torch.arange(length - 1, length + k, device=self.shift_B.device)
        mask_BS = pad(self.mask_BP, (0, length + k - self.prompt), value=1)
        states = self._read(tokens_BK, index_K + self.shift_B[:, None], mask_BS)
        best_BK = self._greedy(states, proposals_BK)
        right_B = (best_BK[:, :k] == proposals_BK).long().cumprod(dim=1).sum(dim=1)
        accepted = int(right_B[self.rows].min())
        self.proposals_BN = self._propose(states, torch.full_like(right_B, accepted))
        verified = best_BK[self.rows, : accepted + 1].tolist()
        gained = self._append(verified)
        self._count(useful, verified, gained)
        if (rejected := k + 1 - max(gained)) > 0:
            self.cache.crop(-rejected)
        self._keep_unfinished()

    def _useful(self) -> list[int]:
        """The proposals of each row that could be output: the last token of the longest sequence needs no verification."""
        return [min(self.n - 1, self.limit - 1 - self.lengths[row]) for row in self.rows]

    def _count(self, useful: list[int], verified: list[list[int]], gained: list[int]) -> None:
        """Count a step's proposals; those behind an end or the longest sequence are not accepted."""
        counts = self.acceptance
        counts.steps += 1
        counts.row_steps += len(gained)
        counts.drafted += sum(useful)
        counts.accepted += sum(
            min(most, n, len(tokens) - 1) for most, n, tokens in zip(useful, gained, verified, strict=True)
        )

    def _read(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Any:
        """Run one forward pass: the input of each head's vocabulary matrix. Prompts may be on another device."""
        device = self.model.device
        return self.model.future_states(
            tokens.to(device),
            attention_mask=None if mask is None else mask.to(device),
            position_ids=positions.to(device),
            past_key_values=self.cache,
        )

    def _greedy(self, states: list[Tensor], proposals_BK: Tensor) -> Tensor:
        """The greedy token at each position of ``states``, the next-token head's first: (B, k + 1)."""
        logits = self.model.vocabulary_head(1)(states[0]).to(self.tokens_BL.device, torch.float32)
        if not self.processor:
            return logits.argmax(dim=-1)
        text_BL = torch.cat([self.tokens_BL[:, : self.lengths[self.rows[0]]], proposals_BK], dim=1)
        first = text_BL.shape[1] - proposals_BK.shape[1]
        decided = [self.processor(text_BL[:, : first + j], logits[:, j]) for j in range(logits.shape[1])]
        return torch.stack(decided, dim=1).argmax(dim=-1)

    def _propose(self, states: list[Tensor], at_B: Tensor) -> Tensor:
        """The tokens that heads 2..n predict at index ``at_B``: (B, n - 1)."""
        at = at_B.to(states[0].device)
        if self.n == 1:
            return at_B.new_zeros(len(at_B), 0)
        rows, head = torch.arange(len(at), device=at.device), self.model.vocabulary_head
        chosen = [state[rows, at] for state in states[1:]]
        if head(2) is head(1):  # all heads share the matrix, which is then read once
            tokens_BN = head(2)(torch.stack(chosen, dim=1)).argmax(dim=-1)
        else:
            tokens_BN = torch.stack([head(i)(h).argmax(dim=-1) for i, h in enumerate(chosen, 2)], dim=1)
        return tokens_BN.to(at_B.device)

    def _append(self, verified: list[list[int]]) -> list[int]:
        """Append each row's tokens up to its end, and return the number of appended tokens per row."""
        gained = []
        for row, tokens in zip(self.rows, verified, strict=True):
            before = self.lengths[row]
            fitting = tokens[: self.limit - before]
            self.tokens_BL[row, before : before + len(fitting)] = torch.tensor(fitting)
            for _ in fitting:
                self.lengths[row] += 1
                if self.ends[row] is None and self._ends(row):
                    self.ends[row] = self.lengths[row]
                if self.pads and self.ends[row] is not None:
                    break
            if self.pads:
                self.tokens_BL[row, self.lengths[row] :] = self.fill
            gained.append(self.lengths[row] - before)
        return gained

    def _ends(self, row: int) -> bool:
        """Whether a row's tokens so far are a whole sequence."""
        if self.lengths[row] == self.limit or not self.criteria:
            return self.lengths[row] == self.limit
        return bool(self.criteria(self.tokens_BL[row : row + 1, : self.lengths[row]], None).all())

    def _unfinished(self, row: int) -> bool:
        if self.pads or self.lengths[row] == self.limit:
            return self.ends[row] is None
        ends = [end for end in self.ends if end is not None]
        return len(ends) < len(self.ends) or self.lengths[row] < max(ends)

    def _keep_unfinished(self) -> None:
        """Note which rows are finished."""
        self.rows = [row for row in self.rows if self._unfinished(row)]


class _RecordedDecoder(_Decoder):
    """A decoder whose steps run the operations of a recorded one.

    The cache is written from one position on for all rows: behind the most tokens that a row has accepted. Tokens that a row
    rejects stay there and are masked; the next step overwrites those that all rows reject. Finished rows stay in the batch.

    Attributes:
        block_Bn: the newest token of each row, and the proposals after it; position_B1: the position of the newest.
        valid_BS: the slots of the cache that hold a row's tokens.
        index_1, index: the slot of the next block, on the device and here.
        active_B: 0 for finished rows, which make no others wait.
    """

    def __init__(self, model: Any, cache: Cache, input_ids: Tensor, *options: Any) -> None:
        super().__init__(model, cache, input_ids, *options)
        rows, device = len(input_ids), model.device
        # Rows that accept more than others leave gaps, which are closed when the cache is full.
        self.capacity = self.limit + self.n + (0 if rows == 1 else int(SLACK * (self.limit - self.prompt)))
        self.cache = StaticCache(config=model.config, max_cache_len=self.capacity)
        self.active_B = torch.ones(rows, dtype=torch.long, device=device)
        self.valid_BS = torch.zeros(rows, self.capacity, dtype=torch.bool, device=device)
        self.slot_S = torch.arange(self.capacity, device=device)
        self.ahead_n = torch.arange(self.n, device=device)
        self.index, self.index_1 = self.prompt, torch.full((1,), self.prompt, device=device)
        self.run: Any = None

    def read_prompt(self, attention_mask: Tensor | None, position_ids: Tensor) -> None:
        super().read_prompt(attention_mask, position_ids)
        device = self.model.device
        self.valid_BS[:, : self.prompt] = self.mask_BP.to(device).bool()
        self.position_B1 = (position_ids[:, -1:].expand(len(self.tokens_BL), 1) + 1).to(device)
        newest_B1 = self.tokens_BL[:, self.prompt : self.prompt + 1]
        self.block_Bn = torch.cat([newest_B1, self.proposals_BN], dim=1).to(device)

    def step(self) -> None:
        if self.index + self.n > self.capacity:
            self._close_gaps()
        if self.run is None:
            outcome, self.run = record(self._block)
        else:
            outcome = self.run()
        useful, every = self._useful(), outcome.tolist()
        verified = [every[row][: every[row][-1] + 1] for row in self.rows]
        self.index += 1 + max(every[row][-1] for row in self.rows)
        self._count(useful, verified, self._append(verified))
        self._keep_unfinished()

    def _block(self) -> Tensor:
        """Verify a block and prepare the next: (B, n + 1), the greedy token after each token, and the number of right ones."""
        block_Bn, index_1 = self.block_Bn, self.index_1
        slots_n1 = (index_1 + self.ahead_n)[:, None]
        own_nS = (self.slot_S >= index_1) & (self.slot_S <= slots_n1)
        hidden = ~(self.valid_BS[:, None, None] | own_nS)
        states = self.model.future_states(
            block_Bn,
            attention_mask=torch.zeros_like(hidden, dtype=self.model.dtype).masked_fill(hidden, -torch.inf),
            position_ids=(self.position_B1 + self.ahead_n).clamp(max=self.limit - 1),
            past_key_values=self.cache,
        )
        best_Bn = self.model.vocabulary_head(1)(states[0]).float().argmax(dim=-1)
        right_B = (best_Bn[:, :-1] == block_Bn[:, 1:]).long().cumprod(dim=1).sum(dim=1) * self.active_B
        proposals = self._propose(states, right_B)
        kept_1 = right_B.max().reshape(1) + 1
        self.valid_BS.logical_or_((self.slot_S >= index_1) & (self.slot_S <= index_1 + right_B[:, None]))
        for layer in self.cache.layers:
            layer.cumulative_length.add_((kept_1 - self.n).reshape(()))
        index_1.add_(kept_1)
        self.position_B1.add_(right_B[:, None] + 1)
        block_Bn.copy_(torch.cat([best_Bn.gather(1, right_B[:, None]), proposals], dim=1))
        return torch.cat([best_Bn, right_B[:, None]], dim=1)

    def _close_gaps(self) -> None:
        """Move the tokens of each row to the first slots of the cache, in their order."""
        self.valid_BS.logical_and_(self.active_B[:, None].bool())
        order_BS = self.valid_BS.long().argsort(dim=1, descending=True, stable=True)
        for layer in self.cache.layers:
            for x in (layer.keys, layer.values):
                x.copy_(x.take_along_dim(order_BS[:, None, :, None], dim=2))
        count_B1 = self.valid_BS.sum(dim=1, keepdim=True)
        self.index = int(count_B1.max())
        self.valid_BS.copy_(self.slot_S < count_B1)
        for x in (self.index_1, *(layer.cumulative_length for layer in self.cache.layers)):
            x.fill_(self.index)

    def _keep_unfinished(self) -> None:
        """Note which rows are finished."""
        super()._keep_unfinished()
        if len(self.rows) < len(self.active_B):
            self.active_B.copy_(torch.tensor([row in self.rows for row in range(len(self.active_B))]))


def _recordable(model: Any, input_ids: Tensor, config: Any) -> bool:
    """Whether all of a step can be recorded: a static cache of full attention, without contexts of chunks."""
    if model.config.future_tokens < 2 or config.max_length - input_ids.shape[1] < LEAST_TOKENS or not can_record(model):
        return False
    layers = StaticCache(config=model.config, max_cache_len=1).layers
    return not model.config.over_context and all(type(layer) is StaticLayer for layer in layers)


def _check_options(config: Any, processor: LogitsProcessorList) -> None:
    if config.get_generation_mode() != GenerationMode.GREEDY_SEARCH:
        raise ConfigError(
            "speculative decoding is greedy: it supports no sampling, no beams and no assistant; "
            "set do_sample=False and num_beams=1, or remove speculative"
        )
    if config.return_dict_in_generate:
        raise ConfigError("speculative decoding returns tokens alone; remove return_dict_in_generate or speculative")
    if any(isinstance(step, UnbatchedClassifierFreeGuidanceLogitsProcessor) for step in processor):
        raise ConfigError("speculative decoding supports no guidance; remove guidance_scale or speculative")


def _check_cache(cache: Cache | None, input_ids: Tensor, position_ids: Tensor | None) -> None:
    if not isinstance(cache, DynamicCache) or not cache.is_croppable:
        raise ConfigError(
            "speculative decoding needs the dynamic cache; leave use_cache and cache_implementation at their defaults"
        )
    whole = position_ids is not None and position_ids.shape[1] == input_ids.shape[1]
    if not whole or cache.get_seq_length() >= input_ids.shape[1]:
        raise ConfigError(
            "speculative decoding needs input_ids: all tokens of the prompt, those already in past_key_values too"
        )
