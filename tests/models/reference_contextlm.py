"""ContextLM written a second time, slowly: one position at a time, straight from the paper's equations.

Only the arithmetic of single blocks is taken from transformers; chunks, contexts and what each position may see are
computed here with Python loops, independently of the package.
"""

import torch


def reference_logits(model, tokens):
    """Logits (T, V) of one unpadded document, for injection behind ``injection_layer`` blocks."""
    config = model.config
    w, split = config.chunk_size, config.injection_layer
    neox = config.backbone_config.model_type == "gpt_neox"
    backbone = model.backbone
    blocks = list(backbone.layers if neox else backbone.h)
    length = len(tokens)
    positions = list(range(length))

    h = (backbone.embed_in if neox else backbone.wte)(torch.tensor(tokens))
    if not neox:
        h = h + backbone.wpe(torch.tensor(positions))
    for block in blocks[:split]:
        h = run(model, block, h, positions)

    chunks = [h[k * w : (k + 1) * w].mean(0) for k in range(length // w)]
    predicted = {0: h[0]}
    for k in range(1, len(chunks) + 1):  # each from the chunks before it alone: nothing later can leak in
        c = torch.stack(chunks[:k])
        for block in model.context.layers:
            c = run(model, block, c, [j * w for j in range(k)])
        predicted[k] = c[-1]
    contexts = torch.stack([predicted[(t + 1) // w] for t in positions])

    for place, block in enumerate(blocks[split:]):
        if place == 0 or config.inject_every_layer:
            gate = model.context.gate.weight[place] if config.injection == "gate" else 1.0
            h = h + gate * contexts
        h = run(model, block, h, positions)
    norm = backbone.final_layer_norm if neox else backbone.ln_f
    return model.lm_head(norm(h))


def run(model, block, x, positions):
    """One block over a sequence (T, D), one query at a time, each over its own prefix."""
    rows = []
    for t in range(len(x)):
        prefix = x[: t + 1][None]
        kwargs = {}
        if model.config.backbone_config.model_type == "gpt_neox":
            place = torch.tensor([positions[: t + 1]])
            kwargs["position_embeddings"] = model.backbone.rotary_emb(prefix, position_ids=place)
            kwargs["attention_mask"] = None
        rows.append(block(prefix, **kwargs)[0, -1])
    return torch.stack(rows)
