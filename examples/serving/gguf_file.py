"""Write a plain run of the family gpt2 or llama as a GGUF file for llama.cpp, and read it back.

pip install gguf                                                    # tested with 0.19
python examples/serving/gguf_file.py runs/gpt2-nano-seed0 gpt2-nano.gguf

Weights are kept in float32; llama.cpp's own `llama-quantize` makes smaller files. The tokenizer must be a byte-level BPE, as
`--tokenizer train:N` and GPT-2's are.
"""

import json
import sys

import numpy as np
from gguf import MODEL_ARCH, GGUFReader, GGUFWriter, TokenType, get_tensor_name_map

from contextwise.models import load_model, load_tokenizer

source, target = sys.argv[1:]
model, tokenizer = load_model(source, device="cpu"), load_tokenizer(source)
config, kind = model.config, model.config.model_type
architectures = {"gpt2": MODEL_ARCH.GPT2, "llama": MODEL_ARCH.LLAMA}
if kind not in architectures:
    sys.exit(f"error: {source} is of the family {kind}; this writes gpt2 and llama")

writer = GGUFWriter(target, kind)
writer.add_context_length(config.max_position_embeddings)
writer.add_embedding_length(config.hidden_size)
writer.add_block_count(config.num_hidden_layers)
writer.add_head_count(config.num_attention_heads)
writer.add_vocab_size(config.vocab_size)
if kind == "gpt2":
    writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
else:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim or config.hidden_size // config.num_attention_heads)

bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
names = {number: token for token, number in tokenizer.get_vocab().items()}
special = set(tokenizer.all_special_ids)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list([names.get(number, f"[unused {number}]") for number in range(config.vocab_size)])
writer.add_token_types([TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(config.vocab_size)])
writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in bpe["merges"]])
writer.add_eos_token_id(tokenizer.eos_token_id)


def value_of(name: str) -> np.ndarray:
    """A tensor as llama.cpp stores it: linear layers as (out, in); halves of Llama's rotary pairs side by side."""
    value = weights[name].float().numpy()
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        value = value.T
    if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
    return np.ascontiguousarray(value)


weights = {
    name: value for name, value in model.state_dict().items() if not (kind == "gpt2" and name == "lm_head.weight")
}
mapped = get_tensor_name_map(architectures[kind], config.num_hidden_layers)
theirs = {name: mapped.get_name(name, (".weight", ".bias")) for name in weights}
for name in weights:
    writer.add_tensor(theirs[name], value_of(name))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

read = {tensor.name: tensor.data for tensor in GGUFReader(target).tensors}
equal = all(np.array_equal(read[theirs[name]], value_of(name)) for name in weights)
if len(read) != len(weights) or not equal:
    sys.exit(f"error: {target} does not hold what was written")
print(f"{target}: {len(read)} tensors, {sum(value.size for value in read.values()):,} numbers, read back equal")
