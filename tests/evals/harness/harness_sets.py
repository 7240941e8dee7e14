"""A model of bytes that is asked tasks, and small sets for it, in the Hub's fields and in others."""

import functools
import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from contextwise.data.tokenizers import byte_tokenizer
from contextwise.models import ContextLMConfig, ContextLMForCausalLM
from contextwise_papers.objectives import MultiTokenConfig, MultiTokenForCausalLM

POSITIONS = 160
FAMILY = {"arc_easy": "arc", "arc_challenge": "arc", "lambada_openai": "lambada"}
WORDS = ["red", "blue", "green", "white", "black", "brown", "pink", "grey", "gold", "teal"]
BYTES = byte_tokenizer().tokenizer


@functools.cache
def few_tasks() -> Any:
    """The harness's index with a few tasks alone: reading all of it takes seconds."""
    import lm_eval.tasks

    home = Path(lm_eval.tasks.__file__).parent
    return lm_eval.tasks.TaskManager(include_defaults=False, include_path=[home / "arc", home / "hellaswag"])


def define(folder: Path, task: str, **splits: list[dict[str, Any]]) -> Path:
    """Write files, and a YAML file in which the harness's own task reads them."""
    import lm_eval.tasks

    folder.mkdir(exist_ok=True)
    family = FAMILY.get(task, task)
    files = {name: str(write_lines(folder / f"{task}_{name}.jsonl", rows)) for name, rows in splits.items()}
    absent = {f"{part}_split": None for part in ("training", "validation", "test")}
    named = {f"{'training' if name == 'train' else name}_split": name for name in splits}
    data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    own = Path(lm_eval.tasks.__file__).parent / family / f"{task}.yaml"
    (folder / f"{task}.yaml").write_text(json.dumps({"include": str(own), **absent, **named, **data}))
    return folder


def model_of_bytes(kind: str = "gpt2", positions: int = POSITIONS, seed: int = 0) -> PreTrainedModel:
    """Random weights, large enough for position and context to matter."""
    torch.manual_seed(seed)
    shared = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256, "initializer_range": 0.3}
    gpt2 = GPT2Config(n_positions=positions, n_embd=16, n_layer=2, n_head=2, **shared)
    if kind == "gemma2":  # caps its logits, so they are not just the head's
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": positions}
        return Gemma2ForCausalLM(Gemma2Config(**sizes, **shared, final_logit_softcapping=2.0)).eval()
    if kind == "contextlm":
        return ContextLMForCausalLM(ContextLMConfig(backbone_config=gpt2, chunk_size=4, injection="add")).eval()
    if kind == "multitoken":
        return MultiTokenForCausalLM(MultiTokenConfig(gpt2, 2, "linear")).eval()
    return GPT2LMHeadModel(gpt2).eval()


def request(*arguments: Any, task: str = "made_up", document: int = 0) -> Any:
    """What the harness hands to a model."""
    return SimpleNamespace(args=arguments, task_name=task, doc_id=document)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def sentence(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def arc_lines(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """AI2's fields, as on the Hub; some with other labels."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        labels = list("1234" if i % 3 == 0 else "ABCD")
        texts = [f"{sentence(draw, 2)} {j}" for j in range(4)]
        choices = {"text": texts, "label": labels}
        rows.append({"id": f"q{i}", "question": f"Which is {sentence(draw, 2)}?", "choices": choices})
        rows[-1]["answerKey"] = draw.choice(labels)
    return rows


def hellaswag_lines(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The Hub's fields, with the marks that the harness takes out."""
    draw = random.Random(seed)
    return [
        {
            "ind": i,
            "activity_label": "Painting",
            "ctx_a": f"[header] How to paint {sentence(draw, 2)} [title] {sentence(draw, 2)}.",
            "ctx_b": "" if i % 2 else "then they",
            "endings": [f"[substeps] {sentence(draw, 2 + j)}." for j in range(4)],
            "label": str(draw.randrange(4)),
            "split": "val",
        }
        for i in range(count)
    ]


def lambada_lines(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [{"text": sentence(draw, draw.randint(3, 12))} for _ in range(count)]
