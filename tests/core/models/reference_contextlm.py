"""ContextLM written a second time, slowly: one chunk at a time, straight from the paper's equations.

Chunks, contexts, norms, and the blocks of GPT-2 and GPT-NeoX are computed here in plain PyTorch, independently of the package;
only the blocks of the other families are those of transformers.
"""

import torch

NAMES = {  # model type: blocks, embedding, final norm inside the backbone
    "gpt2": ("h", "wte", "ln_f"),
    "gpt_neox": ("layers", "embed_in", "final_layer_norm"),
    "llama": ("layers", "embed_tokens", "norm"),
    "qwen3": ("layers", "embed_tokens", "norm"),
}


def reference_logits(model, tokens):
    """Logits (T, V) of one unpadded document."""
    config = model.config
    w, split = config.chunk_size, config.injection_layer
    backbone = model.backbone
    names = NAMES[config.backbone_config.model_type]
    blocks, embedding, norm = (getattr(backbone, name) for name in names)
    length = len(tokens)
    positions = list(range(length))

    h = embedding(torch.tensor(tokens))
    if config.backbone_config.model_type == "gpt2":
        h = h + backbone.wpe(torch.tensor(positions))
    if getattr(config.backbone_config, "embedding_norm", False):
        h = norm_of(h, model.embedding_norm)
    for block in blocks[:split]:
        h = run(model, block, h, positions)

    pool = (lambda chunk: chunk.mean(0)) if config.pooling == "mean" else model.context.pooling
    chunks = [pool(h[k * w : (k + 1) * w]) for k in range(length // w)]
    predicted = {0: h[0] if config.initial_context == "first_token" else torch.zeros_like(h[0])}
    for k in range(1, len(chunks) + 1):  # each from the chunks before it alone: nothing later can leak in
        c = torch.stack(chunks[:k])
        for block in model.context.layers:
            c = run(model, block, c, [j * w for j in range(k)])
        predicted[k] = norm_of(c[-1], model.context.norm) if config.predictor_norm else c[-1]
    contexts = torch.stack([predicted[(t + 1) // w] for t in positions])

    for place, block in enumerate(blocks[split:]):
        if place == 0 or config.inject_every_layer:
            h = merged(model, h, contexts, place, norm)
        h = run(model, block, h, positions)
    return norm_of(h, norm) @ model.lm_head.weight.T


def norm_of(x, norm):
    """LayerNorm, or RMSNorm for a norm without a bias, written out."""
    if hasattr(norm, "bias"):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias
    return x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight


def merged(model, h, contexts, place, last_norm):
    """What the first layer behind an injection reads, written out for each form."""
    form, gate = model.config.injection, model.context.gate
    if form == "add":
        return h + contexts
    if form == "shared_norm":
        return norm_of(h, last_norm) + norm_of(contexts, last_norm)
    if form == "own_norms":
        return norm_of(h, gate.state_norms[place]) + norm_of(contexts, gate.context_norms[place])
    if form == "normed_gate":
        h = norm_of(h, gate.state_norms[place])
    return h + gate.weight[place] * contexts


def run(model, block, x, positions):
    """One block over a sequence (T, D): GPT-2's and GPT-NeoX's in plain PyTorch, another one query by query."""
    family = model.config.backbone_config.model_type
    if family == "gpt2":
        attention = attend(linear(norm_of(x, block.ln_1), block.attn.c_attn), model, block.attn.c_proj)
        x = x + attention
        inner = torch.nn.functional.gelu(linear(norm_of(x, block.ln_2), block.mlp.c_fc), approximate="tanh")
        return x + linear(inner, block.mlp.c_proj)
    if family == "gpt_neox":
        mixed, last = linear(norm_of(x, block.input_layernorm), block.attention.query_key_value), block.attention.dense
        attention = attend(mixed, model, last, positions)
        inner = torch.nn.functional.gelu(linear(norm_of(x, block.post_attention_layernorm), block.mlp.dense_h_to_4h))
        return x + attention + linear(inner, block.mlp.dense_4h_to_h)
    rows = []
    for t in range(len(x)):
        prefix = x[: t + 1][None]
        place = torch.tensor([positions[: t + 1]])
        rotary = model.backbone.rotary_emb(prefix, position_ids=place)
        rows.append(block(prefix, position_embeddings=rotary, attention_mask=None)[0, -1])
    return torch.stack(rows)


def linear(x, layer):
    """A linear layer; GPT-2 stores its matrix as (inputs, outputs)."""
    return x @ (layer.weight.T if isinstance(layer, torch.nn.Linear) else layer.weight) + layer.bias


def attend(mixed, model, last, positions=None):
    """Causal attention of queries, keys and values (T, 3 D), and its last matrix; with positions it is GPT-NeoX's.

    GPT-2 has all queries first, GPT-NeoX those of a head beside its keys; and it rotates the first half of each head.
    """
    heads, length = model.config.num_attention_heads, len(mixed)
    if positions is None:
        query, key, value = (part.view(length, heads, -1) for part in mixed.chunk(3, -1))
    else:
        query, key, value = mixed.view(length, heads, -1).chunk(3, -1)
        query, key = rotated(query, positions), rotated(key, positions)
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    return linear(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1), last)


def rotated(x, positions):
    """Rotary positions on the first half of each head (T, H, d), base 10,000 (partial_rotary_factor 0.5)."""
    half = x.shape[-1] // 2
    turned, rest = x[..., :half], x[..., half:]
    frequency = 10000.0 ** (-torch.arange(0, half, 2) / half)
    angle = torch.tensor(positions)[:, None, None] * frequency
    a, b = turned.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest], -1)
