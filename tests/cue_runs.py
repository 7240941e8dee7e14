"""A tiny news corpus, a tiny text encoder, and recipes for every stage of a CUE model's life."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

from contextwise.base.config import validate
from contextwise.data.tokenizers import byte_tokenizer
from contextwise.training import Recipe
from small import WORDS

CONTEXTS = {"columns": ["title", "date", "tags"], "previous_sentence": True}
STAGES = ("joint", "adapt", "proxy", "adapt_proxy", "swap")


def write_articles(path: Path, count: int, seed: int) -> Path:
    """Articles of 1 to 5 sentences, of 1 to 12 words; a third has no tags."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for i in range(count):
            sentences = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(draw.randint(1, 5))]
            text = " ".join(f"{sentence.capitalize()} {i}." for sentence in sentences)
            tags = draw.choices(WORDS, k=2) if i % 3 else []
            article = {"text": text, "title": sentences[0][:30], "date": f"1987-02-{1 + i % 28:02d}", "tags": tags}
            file.write(json.dumps(article) + "\n")
    return path


def save_text_encoder(folder: Path, seed: int = 0, width: int = 16, positions: int = 40, scale: float = 0.3) -> str:
    """A tiny BERT of bytes, with random weights."""
    words = byte_tokenizer().tokenizer
    words.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})
    torch.manual_seed(seed)
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    shape |= {"max_position_embeddings": positions, "initializer_range": scale}
    model = BertModel(BertConfig(vocab_size=len(words), **shape))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


class Runs:
    """Recipes whose runs lie in one folder."""

    def __init__(self, folder: Path, corpus: Path, encoder: str) -> None:
        self.folder, self.corpus, self.encoder = folder, corpus, encoder

    def values(
        self, name: str, model: dict, output: str | None = None, contexts: dict | None = None, **training
    ) -> dict:
        steps = {"steps": 4, "examples_per_step": 8, "micro_batch_tokens": 128, "learning_rate": 1e-2}
        steps |= {"evaluate_every": 2, "evaluation_tokens": 320, "save_every": 2, "log_every": 1}
        data = {"corpus": str(self.corpus), "context": 32} | ({"contexts": contexts} if contexts else {})
        return {
            "name": name,
            "data": data,
            "objective": "sentence",
            "model": model,
            "training": steps | {"precision": "bf16"} | training,
            "output": str(self.folder / (output or name)),
        }

    def cue(self, name: str, output: str | None = None, contexts: dict | None = None, **settings) -> dict:
        return self.values(name, {"cue": settings}, output, contexts)

    def stage(self, name: str, output: str | None = None, **settings) -> dict:
        """The recipe of a stage; ``settings`` go before its own."""
        small = {"decoder_layers": 1, "decoder_heads": 2}
        text = {"text_encoder": self.encoder, "pooling": "mean"}
        encoder = {"context_layers": 1, "context_heads": 2}
        lm, of = str(self.folder / "lm"), self.folder
        own: dict = {
            "joint": {"stage": "joint", "sentence_encoder": lm, **text, **encoder, **small},
            "adapt": {"stage": "adapt", "start": str(of / "joint")},
            "proxy": {
                "stage": "proxy", "sentence_encoder": lm, "autoencoder": str(of / "unigrams"), "noise": 0.5, **small
            },
            "adapt_proxy": {"stage": "adapt", "start": str(of / "proxy"), **text, **encoder},
            "swap": {
                "stage": "swap", "start": str(of / "joint"), "sentence_encoder": str(of / "lstm"), **small
            },
        }[name]  # fmt: skip
        contexts = {
            "joint": CONTEXTS, "proxy": None, "adapt": {"columns": ["tags"], "previous_sentence": True}
        }.get(name, CONTEXTS)  # fmt: skip
        return self.cue(name, output, contexts, **(own | settings))

    def sentence_models(self) -> list[dict]:
        gpt2 = {"layers": 1, "width": 16, "heads": 2}
        lstm = {"family": "lstm", "layers": 1, "width": 24, "heads": 1}
        unigrams = {"family": "unigram_autoencoder", "width": 4}
        return [self.values("lm", gpt2), self.values("lstm", lstm), self.values("unigrams", unigrams)]


def recipe(values: dict) -> Recipe:
    return validate(Recipe, values, "the recipe")


def weights(run) -> dict[str, torch.Tensor]:
    return load_file(Path(run) / "model" / "model.safetensors")


def part(run, name: str) -> dict[str, torch.Tensor]:
    """The weights of one part of a run's model; of a run that is that part, all of them."""
    found = weights(run)
    if name == "sentence_encoder" and not any(key.startswith("sentence_encoder.") for key in found):
        return found
    own = {key.removeprefix(f"{name}."): value for key, value in found.items() if key.startswith(f"{name}.")}
    assert own, f"{run} has no part {name}"
    return own


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
