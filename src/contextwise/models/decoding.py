"""Text generation with little work per token besides the arithmetic: a recorded decoding step over a static cache.

In a small model, a token costs more time in Python than in matrix products. With a cache of fixed size all steps run the same
operations on the same tensors, so those of one step are recorded, and later steps run only these, as a CUDA graph does.

Shapes: B rows, T positions of the prompt, S positions of the cache, V tokens in the vocabulary.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StaticCache,
    StoppingCriteriaList,
)
from transformers.generation import GenerationMode
from transformers.generation.stopping_criteria import MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from contextwise.base.errors import ConfigError
from contextwise.models.contextlm.cache import StaticChunkLayer
from contextwise.models.contextlm.pathway import context_pathway
from contextwise.models.families import CACHE, adapter
from contextwise.models.masks import takes_masks, without_reading
from contextwise.models.rope import follows_length, rotary_modules, stock_config

LEAST_TOKENS = 8
"""A recording does not pay for fewer new tokens."""

UNCHANGED = ("contiguous", "dropout", "expand", "float", "reshape", "to")
"""Functions that return their input itself where they have nothing to do."""

READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.nonzero.default)


class Reads(TorchDispatchMode):
    """Counts the operations whose results depend on values in Python: ``.item()``, ``bool(tensor)``, ``nonzero``."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in READS
        return function(*args, **(kwargs or {}))


class Recorder(TorchFunctionMode):
    """Records the calls of torch functions as a graph, while they run; tensors from outside become inputs of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        # By the id of each tensor, which identifies it as long as it exists.
        self._nodes: dict[int, tuple[Tensor, fx.Node]] = {}

    def function(self, outputs: Any) -> Callable[..., Any]:
        """The function that computes ``outputs``, of all inputs."""
        self.graph.output(tree_map(self._node_of, outputs))
        return fx.GraphModule(nn.Module(), self.graph).forward

    def _node_of(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in self._nodes:
            self.inputs.append(x)
            self._nodes[id(x)] = x, self.graph.placeholder(f"input_{len(self.inputs)}")
        return self._nodes[id(x)][1]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and any(result is x for x in args[:1]) and function.__name__ in UNCHANGED:
            return result
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if any(isinstance(x, Tensor) for x in parts) or function is Tensor.__setitem__:
            call = self.graph.call_function(function, *tree_map(self._node_of, (tuple(args), kwargs or {})))
            for i, x in enumerate(parts):
                if isinstance(x, Tensor):
                    part = call if x is result else self.graph.call_function(operator.getitem, (call, i))
                    self._nodes[id(x)] = x, part
        return result


class StaticDecoding:
    """A model, a static cache of S positions with its prompt, and the decoding steps recorded so far.

    ``prompt`` holds the arguments of ``model.prepare_inputs_for_generation()`` for the prompt.
    """

    def __init__(self, model: Any, input_ids: Tensor, capacity: int, prompt: dict[str, Any]) -> None:
        self.model, rows = model, len(input_ids)
        self.cache = StaticCache(config=model.config, max_cache_len=capacity)
        prompt = {**prompt, CACHE: self.cache}
        inputs = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **prompt)
        self.first_logits_BV = model(**inputs, return_dict=True).logits[:, -1].float()
        real_BT = prompt.get("attention_mask")
        real_BT = torch.ones_like(input_ids) if real_BT is None else real_BT
        length = input_ids.shape[1]
        self.token_B1 = input_ids[:, -1:].clone()
        self.position_B1 = real_BT.sum(1, keepdim=True)
        self.index_1 = torch.full((1,), length, device=input_ids.device)
        self.mask_B11S = torch.full((rows, 1, 1, capacity), -torch.inf, dtype=model.dtype, device=input_ids.device)
        self.mask_B11S[:, 0, 0, :length].masked_fill_(real_BT.bool(), 0.0)
        pathway = context_pathway(model)
        self.chunk_size = None if pathway is None else pathway.chunk_size
        # The only values that are read: the lengths of the rows say which steps complete a chunk.
        self.lengths = [] if pathway is None else real_BT.sum(1).tolist()
        self.recorded: dict[bool, Callable[[], Tensor]] = {}

    def logits(self, token_B: Tensor) -> Tensor:
        """Append one token to each row: the logits of the next, (B, V) float32."""
        self.token_B1.copy_(token_B[:, None])
        self.lengths = [length + 1 for length in self.lengths]
        w = self.chunk_size
        inside = w is None or all(length % w for length in self.lengths)
        if inside not in self.recorded:
            # A cache layer allocates its tensors at its first use; recorded, every step would allocate them anew.
            if not all(x.is_initialized for x in self.cache.layers if isinstance(x, StaticChunkLayer)):
                with without_reading():
                    return self._step(inside)
            logits_BV, self.recorded[inside] = record(partial(self._step, inside))
            return logits_BV
        return self.recorded[inside]()

    def _step(self, inside_chunks: bool) -> Tensor:
        self.mask_B11S.index_fill_(3, self.index_1, 0.0)
        known = {} if self.chunk_size is None else {"inside_chunks": inside_chunks}
        out = self.model(
            input_ids=self.token_B1,
            attention_mask=self.mask_B11S,
            position_ids=self.position_B1.clone(),
            use_cache=True,
            return_dict=True,
            **{CACHE: self.cache},
            **known,
        )
        self.position_B1.add_(1)
        self.index_1.add_(1)
        return out.logits[:, -1].float()


def record(step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Tensor]]:
    """Run a step and record it: its result, and what runs it again; the step itself where operations depend on values."""
    recorder, reads = Recorder(), Reads()
    with without_reading(), reads, recorder:
        result = step()
    return result, step if reads.count else partial(recorder.function(result), *recorder.inputs)


def can_record(model: Any) -> bool:
    """Whether decoding steps of a model can be recorded: a decoder with an adapter, masks and fixed rotary frequencies."""
    config = stock_config(model.config)
    dynamic = any(follows_length(module) for _, module in rotary_modules(model))
    return not model.training and adapter(config) is not None and takes_masks(model.config) and not dynamic


def generate(model: PreTrainedModel, input_ids: Tensor, *, streamer: BaseStreamer | None = None, **options: Any) -> Any:
    """Generate as ``model.generate(input_ids, streamer=streamer, **options)`` does, greedily or by sampling, in less time.

    The tokens are the same, except where rounding decides between two: the sums of attention run over a static cache. What
    cannot be recorded is left to transformers' own loop.
    """
    return model.generate(input_ids, custom_generate=partial(_decode, streamer=streamer), **options)


def _decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that ``generate()`` calls, with everything prepared."""
    if generation_config.get_generation_mode() not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ConfigError("only greedy decoding and sampling are recorded; call the model's own generate()")
    if streamer is not None:
        streamer.put(input_ids.cpu())
    cache: Any = model_kwargs.get(CACHE)
    limit = generation_config.max_length
    fresh = type(cache) is DynamicCache and cache.get_seq_length() == 0
    short = limit - input_ids.shape[1] < LEAST_TOKENS
    if short or not fresh or generation_config.return_dict_in_generate or not can_record(model):
        parts = (logits_processor, stopping_criteria, generation_config)
        return model._sample(input_ids, *parts, streamer=streamer, **model_kwargs)
    length, rows = input_ids.shape[1], len(input_ids)
    tokens_BS = nn.functional.pad(input_ids, (0, limit - length))
    criteria = StoppingCriteriaList(x for x in stopping_criteria if type(x) is not MaxLengthCriteria)
    pads = rows > 1 and any(hasattr(each, "eos_token_id") for each in criteria)
    running_B = torch.ones(rows, dtype=torch.bool, device=input_ids.device)
    decoding = StaticDecoding(model, input_ids, limit - 1, model_kwargs)
    logits_BV = decoding.first_logits_BV
    while True:
        scores_BV = logits_processor(tokens_BS[:, :length], logits_BV)
        if generation_config.do_sample:
            next_B = torch.multinomial(scores_BV.softmax(-1), num_samples=1)[:, 0]
        else:
            next_B = scores_BV.argmax(-1)
        if pads:
            next_B = torch.where(running_B, next_B, generation_config._pad_token_tensor)
        tokens_BS[:, length] = next_B
        length += 1
        if streamer is not None:
            streamer.put(next_B.cpu())
        if criteria:
            running_B = running_B & ~criteria(tokens_BS[:, :length], None)
        if length >= limit or (criteria and not running_B.any()):
            break
        logits_BV = decoding.logits(next_B)
    if streamer is not None:
        streamer.end()
    return tokens_BS[:, :length].clone()
