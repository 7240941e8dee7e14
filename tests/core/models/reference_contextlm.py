"""ContextLM written a second time, slowly: one position at a time, straight from the paper's equations.

Only the arithmetic of single blocks is taken from transformers; chunks, contexts and what each position may see are
computed here with Python loops, independently of the package.
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
    for block in blocks[:split]:
        h = run(model, block, h, positions)

    pool = (lambda chunk: chunk.mean(0)) if config.pooling == "mean" else model.context.pooling
    chunks = [pool(h[k * w : (k + 1) * w]) for k in range(length // w)]
    predicted = {0: h[0]}
    for k in range(1, len(chunks) + 1):  # each from the chunks before it alone: nothing later can leak in
        c = torch.stack(chunks[:k])
        for block in model.context.layers:
            c = run(model, block, c, [j * w for j in range(k)])
        predicted[k] = c[-1]
    contexts = torch.stack([predicted[(t + 1) // w] for t in positions])

    for place, block in enumerate(blocks[split:]):
        if place == 0 or config.inject_every_layer:
            h = h + injected(model, contexts, place)
        h = run(model, block, h, positions)
    return model.lm_head(norm(h))


def injected(model, contexts, place):
    """What is added to h, written out for each form."""
    form = model.config.injection
    if form == "add":
        return contexts
    weight = model.context.gate.weight[place]
    if form == "projection":
        return torch.stack([weight @ context for context in contexts])
    if form.startswith("norm"):
        contexts = contexts / contexts.square().mean(-1, keepdim=True).sqrt()
    return weight * contexts


def run(model, block, x, positions):
    """One block over a sequence (T, D), one query at a time, each over its own prefix."""
    rows = []
    for t in range(len(x)):
        prefix = x[: t + 1][None]
        kwargs = {}
        if model.config.backbone_config.model_type != "gpt2":
            place = torch.tensor([positions[: t + 1]])
            kwargs["position_embeddings"] = model.backbone.rotary_emb(prefix, position_ids=place)
            kwargs["attention_mask"] = None
        rows.append(block(prefix, **kwargs)[0, -1])
    return torch.stack(rows)
