"""Small models for the tests of causality: causal ones, and ones that are broken in one way each."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, LlamaConfig

from contextwise import ContextLMConfig, ContextLMForCausalLM

VOCABULARY, POSITIONS = 61, 48


def gpt2_config():
    return GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=2)


def neox_config():
    return GPTNeoXConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )


def llama_config():
    return LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
    )


def contextlm(config, **options):
    """A ContextLM in which the context matters: its gates are drawn, not zero."""
    torch.manual_seed(0)
    model = ContextLMForCausalLM(ContextLMConfig(config, **options)).eval()
    for parameter in model.context.gate.parameters():
        torch.nn.init.normal_(parameter)
    return model


def gpt2(kind=GPT2LMHeadModel):
    torch.manual_seed(0)
    return kind(gpt2_config()).eval()


class Bidirectional(GPT2LMHeadModel):
    """Every token sees every other; padding stays hidden."""

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, inputs_embeds=None, **kwargs):
        given = input_ids if inputs_embeds is None else inputs_embeds
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        rows, length = given.shape[:2]
        mask = torch.zeros(rows, 1, length, seen + length, dtype=self.dtype)
        if attention_mask is not None:
            mask = mask.masked_fill(attention_mask[:, None, None] == 0, torch.finfo(self.dtype).min)
        return super().forward(
            input_ids, attention_mask=mask, past_key_values=past_key_values, inputs_embeds=inputs_embeds, **kwargs
        )


class Peeking(GPT2LMHeadModel):
    """The logits at one position also read the embedding at a later one, in rows without a cache."""

    at, source, detached = 3, 4, False

    def forward(self, input_ids=None, inputs_embeds=None, past_key_values=None, **kwargs):
        embeds = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        output = super().forward(inputs_embeds=embeds, past_key_values=past_key_values, **kwargs)
        if past_key_values is None and embeds.shape[1] > self.source:
            read = embeds[:, self.source].sum(-1, keepdim=True)
            logits = output.logits.clone()
            logits[:, self.at] += read.detach() if self.detached else read
            output.logits = logits
        return output


def without_mask(model, positional, named):
    """A hook: neither mask nor positions reach the model."""
    return positional, {k: v for k, v in named.items() if k not in ("attention_mask", "position_ids")}


def without_positions(model, positional, named):
    """A hook: positions do not reach the model."""
    return positional, {k: v for k, v in named.items() if k != "position_ids"}


def one_too_far(model, positional, named):
    """A hook: with a filled cache, the tokens stand one position further than they should."""
    past = named.get("past_key_values")
    if past is None or not past.get_seq_length():
        return None
    start, length = past.get_seq_length() + 1, named["input_ids"].shape[1]
    positions = named.get("position_ids", torch.arange(start - 1, start - 1 + length)[None])
    return positional, {**named, "position_ids": positions + 1}


def hooked(model, hook):
    model.register_forward_pre_hook(hook, with_kwargs=True)
    return model


def shifted(model, method):
    """Each position adds the context of the next one: a leak at chunk borders and nowhere else."""
    original = getattr(model.context, method)

    def early(*arguments, **named):
        context = model.context.added(original(*arguments, **named), lambda c: c)
        return torch.cat([context[:, 1:], context[:, -1:]], 1)

    setattr(model.context, method, early)
    return model
