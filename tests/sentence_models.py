"""Articles with metadata, and small sentence models and CUE models with random weights, for the tests of their evaluation."""

import json
import random
from pathlib import Path

import torch
from transformers import GPT2LMHeadModel

from contextwise.data import prepare_corpus
from contextwise_papers.cue import CueConfig, CueForCausalLM
from contextwise_papers.cue.config import CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig
from contextwise_papers.cue.encoding import TextEncoder
from cue_runs import save_text_encoder
from small import small_gpt2

SENTENCE = "grain oil bank trade rises falls in on the a of Japan London price said it will"
WORDS = SENTENCE.split(" ")
TITLES = ["Oil price rises", "Grain trade in Japan", "Bank of London", "It will rise"]
VOCABULARY, POSITIONS = 260, 48
TYPES = {"columns": ["title", "date", "topics"], "previous_sentence": True}


def write_articles(path: Path, count: int = 12, seed: int = 0) -> Path:
    """Articles of one to four sentences (``1 + i % 4``); some lack a title or topics. No word is an abbreviation."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for i in range(count):
            sentences = [
                " ".join(draw.choices(WORDS, k=draw.randint(3, 12))).capitalize() + " today." for _ in range(1 + i % 4)
            ]
            article = {
                "text": " ".join(sentences),
                "title": None if i % 5 == 4 else TITLES[i % len(TITLES)],
                "date": f"1987-03-{i + 1:02d}",
                "topics": draw.sample(WORDS[:4], k=i % 3),
            }
            file.write(json.dumps(article) + "\n")
    return path


def make_corpus(folder: Path, count: int = 12) -> Path:
    """A prepared corpus of bytes with one split, ``train``."""
    prepare_corpus(write_articles(folder / "articles.jsonl", count), "bytes", folder / "corpus", validation=0.0)
    return folder / "corpus"


def write_text_encoder(folder: Path, seed: int = 0) -> Path:
    """A tiny BERT over bytes, its weights large enough for every text to matter."""
    return Path(save_text_encoder(folder, seed, width=8, positions=64, scale=0.5))


def sentence_model(seed: int = 0, positions: int = POSITIONS) -> GPT2LMHeadModel:
    """A GPT-2 of a few thousand parameters, its weights large enough for every token to matter."""
    return small_gpt2(VOCABULARY, positions, seed, initializer_range=0.3, bos_token_id=256, eos_token_id=256)


def cue_model(
    text_encoder: Path | None, seed: int = 0, positions: int = POSITIONS, noise: float | None = None
) -> CueForCausalLM:
    """A small CUE model; without a text encoder one that was trained without contexts; with a noise, on proxies."""
    torch.manual_seed(seed)
    contexts = None
    if text_encoder is not None:
        encoder = TextEncoder.open(str(text_encoder), "mean", device="cpu")
        contexts = CueContextConfig(
            text_width=8, width=16, layers=1, heads=2, text_encoder=encoder.about(), contexts=TYPES
        )
    decoder = CueDecoderConfig(
        input_width=16, cue_width=16, layers=1, heads=2, vocab_size=VOCABULARY, max_positions=positions
    )
    sentence_encoder = sentence_model(seed, positions)
    autoencoder = UnigramConfig(VOCABULARY, [8, 4], eos_token_id=256)
    proxy = None if noise is None else ProxyConfig(autoencoder, 16, noise)
    model = CueForCausalLM(CueConfig(sentence_encoder.config, contexts, decoder, proxy))
    model.sentence_encoder.load_state_dict(sentence_encoder.state_dict())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("sentence_encoder"):
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model.eval()


def proxy_model(noise: float) -> CueForCausalLM:
    """A small CUE model that was trained on proxies."""
    return cue_model(None, noise=noise)
