"""Causal language model for lm-evaluation-harness, with bounded memory.

The harness's own class computes the log-softmax of every position over the whole vocabulary. Here the head is applied only to
the positions of the continuations, some hundreds at a time. Tokenization, truncation and windows are the harness's own code.

Legend of shapes: B rows in a batch, T positions of the longest of them, D channels, P positions whose logits are needed, A
answers: pairs of a position and a token that is scored there.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from contextwise.base.hashes import content_key
from contextwise.base.progress import interruption
from contextwise.evaluation.kernel import Journal
from contextwise.measures import batches, check_tokens
from contextwise.models import final_hidden_states
from contextwise.models.losses import has_plain_head, rows_at_once
from contextwise.models.masks import as_attention_mask, prefix_attention
from contextwise.models.prefix import reads_prefix
from contextwise.models.rope import same_frequencies_up_to
from contextwise.report import progress_bar
from contextwise.settings import CheckpointError, ConfigError, DataError
from contextwise_evals.answering.readers import ModelReader

LEAST_ROWS = 128
"""Minimum number of positions whose logits are in memory together: half as many as in training, since each has copies."""
Encoded = tuple[Any, list[int], list[int]]
"""A request in the harness's form: the original request, tokens of the context, tokens of the continuation."""
Document = tuple[str, int]
"""Name of a task, and the number of one of its documents."""


@dataclass(frozen=True)
class Row:
    """Input tokens, and the requests that share them: (number of the request, its continuation).

    For a model with a prefix, the first ``prefix`` tokens, the context, see each other in both directions.
    """

    inputs: tuple[int, ...]
    requests: tuple[tuple[int, tuple[int, ...]], ...]
    prefix: int = 0


class BoundedLM(HFLM):
    """Causal language model for the harness.

    Args:
        max_length: maximum number of positions; None: the value that the harness reads from the model's configuration.
        journal: keeps the answers, by a hash of the request, and has those of a stopped measurement.

    Attributes:
        cut: task -> its documents whose text exceeded the model's positions, so that the beginning was truncated.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
        batch_tokens: int,
        journal: Journal | None = None,
    ) -> None:
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise CheckpointError(
                "the model's tokenizer has neither a token for the beginning nor one for the end of a text, and the harness "
                "puts one before a text; give it one with tokenizer.add_special_tokens"
            )
        # The harness hands over all requests at once; the batches are made here.
        options: dict[str, Any] = {"backend": "causal", "max_length": max_length, "batch_size": sys.maxsize}
        super().__init__(pretrained=model, tokenizer=tokenizer, **options)
        self.batch_tokens, self.journal = batch_tokens, journal
        self.cut: dict[str, set[int]] = defaultdict(set)
        self.stage = "tasks"
        self._asking: list[Document] = []

    def get_model_info(self) -> dict[str, Any]:
        """Information about the model for the results; the harness's own method would query the Hub."""
        return {
            "model_num_parameters": self.model.num_parameters(),
            "model_dtype": str(self.model.dtype).removeprefix("torch."),
            "model_revision": "",
            "model_sha": "",
        }

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood in nats of each request's continuation, and whether it is the likeliest at every token."""
        self._asking = [(str(request.task_name), int(request.doc_id)) for request in requests]
        try:
            return super().loglikelihood(requests, disable_tqdm=True)
        finally:
            self._asking = []

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = True, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        keys = [content_key(context=context, continuation=continuation) for _, context, continuation in requests]
        kept = {} if self.journal is None else self.journal.rows
        results = {i: (kept[key]["nats"], kept[key]["likeliest"]) for i, key in enumerate(keys) if key in kept}
        rows = [row for row in self._rows(requests) if not all(index in results for index, _ in row.requests)]
        lengths = np.array([len(row.inputs) for row in rows])
        with progress_bar(self.stage, len(requests), "requests") as advance:
            advance(len(results))
            for batch in batches(lengths, self.batch_tokens, same_frequencies_up_to(self.model)):
                interruption.check(f"stopped after {len(results):,} of {len(requests):,} answers")
                answers = score_rows(self.model, [rows[i] for i in batch])
                if self.journal is not None:
                    found = [{"key": keys[i], "nats": nats, "likeliest": best} for i, (nats, best) in answers.items()]
                    self.journal.add(*found)
                results |= answers
                advance(len(answers))
        return [results[index] for index in range(len(requests))]

    def _rows(self, requests: Sequence[Encoded]) -> list[Row]:
        """Group requests with equal input tokens into rows: single tokens after a context, for example."""
        rows: dict[tuple[tuple[int, ...], int], list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
        limit, has_prefix = self.max_length, reads_prefix(self.model.config)
        for index, (_, context, continuation) in enumerate(requests):
            task, document = self._asking[index] if self._asking else ("a text", 0)
            if not 0 < len(continuation) <= limit:
                raise DataError(
                    f"{task}: an answer of document {document} has {len(continuation)} tokens, but must have at least 1 and "
                    f"at most the {limit} positions of the model; leave the document out"
                )
            tokens = context + continuation
            if len(tokens) > limit + 1:
                self.cut[task].add(document)
            inputs = tuple(tokens[-(limit + 1) : -1])
            prefix = len(inputs) + 1 - len(continuation) if has_prefix else 0
            rows[inputs, prefix].append((index, tuple(continuation)))
        return [Row(inputs, tuple(each), prefix) for (inputs, prefix), each in rows.items()]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """The greedy answer to each request, up to its first stop sequence."""
        questions = [self._question(request) for request in requests]
        keys = [content_key(prompt=ids, new_tokens=new, until=until) for ids, new, until in questions]
        answers: dict[str, str] = {}
        if self.journal is not None:
            answers = {key: self.journal.rows[key]["answer"] for key in keys if key in self.journal.rows}
        alike: dict[tuple[int, tuple[str, ...]], dict[str, list[int]]] = defaultdict(dict)
        for key, (ids, new, until) in zip(keys, questions, strict=True):
            if key not in answers:
                alike[new, until][key] = ids
        reader = ModelReader(self.model, self.tokenizer)
        with progress_bar(self.stage, len(set(keys)), "answers") as advance:
            advance(len(answers))
            for (new, until), prompts in alike.items():
                rows = list(prompts)
                lengths = np.array([len(prompts[key]) + new for key in rows])
                for batch in batches(lengths, self.batch_tokens, same_frequencies_up_to(self.model)):
                    interruption.check(f"stopped after {len(answers):,} of {len(set(keys)):,} answers")
                    asked = {rows[i]: prompts[rows[i]] for i in batch}
                    texts = reader.answer(list(asked.values()), new, until)
                    found = {
                        key: postprocess_generated_text(text, list(until), None)
                        for key, text in zip(asked, texts, strict=True)
                    }
                    if self.journal is not None:
                        self.journal.add(*({"key": key, "answer": text} for key, text in found.items()))
                    answers |= found
                    advance(len(found))
        return [answers[key] for key in keys]

    def _question(self, request: Any) -> tuple[list[int], int, tuple[str, ...]]:
        """Token ids of a prompt, cut at the left to leave room for the answer; most tokens of the answer; and its stops."""
        text, options = request.args
        options = normalize_gen_kwargs(options, self.max_gen_toks)
        new = options["max_gen_toks"]
        room = self.max_length - new
        if room < 1:
            raise ConfigError(
                f"{request.task_name}: an answer has up to {new} tokens, which leaves no room for a question in a context of "
                f"{self.max_length}; give a larger one"
            )
        (ids,) = self.tok_batch_encode([text])[0].tolist()
        check_tokens(max(ids, default=0), self.model)
        if len(ids) > room:
            self.cut[str(request.task_name)].add(int(request.doc_id))
        end = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        return ids[-room:], new, tuple(dict.fromkeys([*options["until"], end]))


@torch.no_grad()
def score_rows(model: PreTrainedModel, rows: Sequence[Row]) -> dict[int, tuple[float, bool]]:
    """Score the continuation of each request: log-likelihood in nats, and whether it is the likeliest at every token.

    Rows are padded on the right: the models are causal, so what follows a position cannot change it.
    """
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row.inputs) for row in rows], batch_first=True)
    known = check_tokens(max(int(ids.max()), *(max(answer) for row in rows for _, answer in row.requests)), model)
    requests = [(number, row, *request) for number, row in enumerate(rows) for request in row.requests]
    answers = [
        (slot, number * ids.shape[1] + len(row.inputs) - len(answer) + offset, token)
        for slot, (number, row, _, answer) in enumerate(requests)
        for offset, token in enumerate(answer)
    ]
    # (A,) each: index of the request in the batch, position in the flattened batch, token scored at it.
    slot, position, target = torch.tensor(answers).t().contiguous()
    needed, where = position.unique(return_inverse=True)  # (P,) sorted; (A,) index into them
    further: dict[str, Any] = {}
    if any(row.prefix for row in rows):
        prefix_BT = torch.arange(ids.shape[1]) < torch.tensor([[row.prefix] for row in rows])
        further["attention_mask"] = as_attention_mask(prefix_attention(prefix_BT.to(model.device)), model)
    device = model.device
    if has_plain_head(model):
        hidden = final_hidden_states(model, input_ids=ids.to(device), **further).flatten(0, 1)
        head = model.get_output_embeddings()
    else:
        hidden = model(input_ids=ids.to(device), use_cache=False, **further).logits.flatten(0, 1)
        head = nn.Identity()
    nats, greedy = torch.empty(len(where), dtype=torch.float32), torch.empty(len(where), dtype=torch.bool)
    step = rows_at_once(known, device, LEAST_ROWS)
    for first in range(0, len(needed), step):
        log_p = head(hidden[needed[first : first + step].to(device)]).float().log_softmax(-1)
        here = (where >= first) & (where < first + step)
        row, token = (where[here] - first).to(device), target[here].to(device)
        nats[here] = log_p[row, token].cpu()
        greedy[here] = (log_p.argmax(-1)[row] == token).cpu()
    if nats.isnan().any():
        raise CheckpointError(
            "the model's logits are not numbers (NaN): its weights are damaged, or its number format is too narrow "
            "(try float32)"
        )
    sums = torch.zeros(len(requests), dtype=torch.float64).index_add_(0, slot, nats.double())
    misses = torch.zeros(len(requests)).index_add_(0, slot, (~greedy).float())
    results = zip(requests, sums.tolist(), misses.tolist(), strict=True)
    return {index: (total, missed == 0) for (_, _, index, _), total, missed in results}
