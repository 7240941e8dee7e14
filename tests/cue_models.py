"""Small CUE models for tests, in which everything matters: e_cue of the empty set and the constants are drawn too."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from contextwise_papers.cue import CueConfig, CueForCausalLM, LSTMConfig, LSTMForCausalLM
from contextwise_papers.cue.config import CueContextConfig, CueDecoderConfig, ProxyConfig, UnigramConfig
from contextwise_papers.cue.parts import CueContextEncoder, CueDecoder, ProxyEncoder, UnigramAutoencoder

VOCABULARY, LONGEST, END = 47, 24, 0
TEXT, STATES, WIDTH, CUE = 10, 16, 12, 8  # C, S, D and W all differ, so that no projection is left out

FORMS = pytest.mark.parametrize(
    "options",
    [{}, {"form": "concatenate"}, {"sentence_inputs": False}, {"form": "concatenate", "sentence_inputs": False}],
    ids=["transformer", "concatenate", "no sentence", "concatenate, no sentence"],
)
ENCODERS = pytest.mark.parametrize("kind", ["gpt2", "lstm"])


def sentence_encoder(kind="gpt2", dropout=0.0, **options):
    ends = {"bos_token_id": END, "eos_token_id": END, "vocab_size": VOCABULARY}
    if kind == "lstm":
        return LSTMForCausalLM(LSTMConfig(hidden_size=STATES, num_hidden_layers=2, **ends, **options))
    drop = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return AutoModelForCausalLM.from_config(
        GPT2Config(n_positions=LONGEST, n_embd=STATES, n_layer=2, n_head=2, **ends, **drop)
    )


def context_encoder(seed=0, **options):
    torch.manual_seed(seed)
    values = {"text_width": TEXT, "width": CUE, "heads": 2, "feed_forward": 20}
    encoder = CueContextEncoder(CueContextConfig(**values | options)).eval()
    torch.nn.init.normal_(encoder.empty)
    return encoder


def decoder(**options):
    values = {"input_width": STATES, "width": WIDTH, "cue_width": CUE, "layers": 2, "heads": 2}
    made = CueDecoder(CueDecoderConfig(**values | {"vocab_size": VOCABULARY, "max_positions": LONGEST} | options))
    if not made.config.sentence_inputs:
        torch.nn.init.normal_(made.constant)
    return made


def autoencoder(seed=0, **options):
    torch.manual_seed(seed)
    return UnigramAutoencoder(UnigramConfig(VOCABULARY, [6, 4], eos_token_id=END, **options))


def proxy(noise=0.5, seed=0):
    return proxy_of(autoencoder(seed), CUE, noise)


def proxy_of(autoencoder, width, noise):
    """A proxy encoder with a new projection after an autoencoder, which is shared."""
    made = ProxyEncoder(ProxyConfig(autoencoder.config, width, noise))
    made.autoencoder = autoencoder.requires_grad_(False)
    return made


def of_parts(sentence_encoder, context_encoder=None, decoder=None, proxy=None, cls=CueForCausalLM):
    """A model of parts, which are shared, in evaluation mode."""
    parts = {
        "sentence_encoder": sentence_encoder,
        "context_encoder": context_encoder,
        "decoder": decoder,
        "proxy": proxy,
    }
    with torch.device("meta"):
        model = cls(CueConfig(*(None if part is None else part.config for part in parts.values())))
    for name, part in parts.items():
        setattr(model, name, part)
    model.sentence_encoder.requires_grad_(False)
    return model.eval()


def cue_model(kind="gpt2", seed=0, dropout=0.0, encoder=None, **decoder_options):
    torch.manual_seed(seed)
    sentences = sentence_encoder(kind, dropout)
    return of_parts(sentences, encoder or context_encoder(seed), decoder(**decoder_options))


def proxy_model(noise=0.5, seed=0):
    torch.manual_seed(seed)
    return of_parts(sentence_encoder(), decoder=decoder(), proxy=proxy(noise, seed))


def draw(rows=3, length=7, contexts=4, seed=0):
    """Tokens, contexts and a mask of which the first row is empty and the second is full."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (rows, length), generator=generator)
    vectors = torch.randn(rows, contexts, TEXT, generator=generator)
    mask = torch.rand(rows, contexts, generator=generator) < 0.6
    mask[0] = False
    mask[1] = True
    return tokens, {"contexts": vectors, "context_mask": mask}


def batch_of(tokens, contexts):
    """A batch of training: labels are shifted, and the last row is shorter."""
    labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    labels[-1, 3:] = -100
    return {"input_ids": tokens, "labels": labels, **contexts}
