"""Families of models and their named sizes, without torch, so that recipes can be checked quickly.

``base`` to ``xl`` are the GPT-2 sizes of ContextLM's Table 7, ``pythia-70m`` to ``pythia-1.4b`` the Pythia sizes of its
Table 8, with their printed learning rates. The sizes below ``base``, and those of the other families, are ours, for machines
without a large GPU.
"""

from dataclasses import dataclass

from contextwise.base.errors import ConfigError, Problem


@dataclass(frozen=True)
class ModelSize:
    """A size of a backbone: its shape and learning rate, and whether the rate was published."""

    layers: int
    width: int
    heads: int
    learning_rate: float
    published: bool = False


MEASURED_WIDTHS = (64, 128, 256)
"""Widths at which AdamW's rate was searched."""


def adamw_rate(width: int) -> float:
    """AdamW's learning rate for a width: 2.2e-3 * (128 / width)^0.83, to two digits.

    The exponent is that of GPT-2's best rates at the measured widths, the factor the best rate of width 128 in steps of 8,192
    tokens, the default.
    """
    return float(f"{2.2e-3 * (128 / width) ** 0.83:.1e}")


# Heads have 32 channels in every size, which the maximal update parametrization asks for.
OUR_SIZES = {
    name: ModelSize(layers, width, width // 32, adamw_rate(width))
    for name, layers, width in (
        ("pico", 2, 64),
        ("nano", 4, 128),
        ("micro", 6, 192),
        ("tiny", 6, 256),
        ("mini", 8, 384),
        ("small", 12, 512),
    )
}

SIZES: dict[str, dict[str, ModelSize]] = {
    "gpt2": {
        **OUR_SIZES,
        "base": ModelSize(12, 768, 12, 1.0e-3, True),
        "medium": ModelSize(24, 1024, 16, 8.0e-4, True),
        "large": ModelSize(36, 1280, 20, 6.0e-4, True),
        "xl": ModelSize(48, 1600, 25, 4.0e-4, True),
    },
    "gpt_neox": {
        **OUR_SIZES,
        "pythia-70m": ModelSize(6, 512, 8, 1.0e-3, True),
        "pythia-160m": ModelSize(12, 768, 12, 6.0e-4, True),
        "pythia-410m": ModelSize(24, 1024, 16, 3.0e-4, True),
        "pythia-1b": ModelSize(16, 2048, 8, 2.5e-4, True),
        "pythia-1.4b": ModelSize(24, 2048, 16, 2.0e-4, True),
    },
    **dict.fromkeys(("gpt2_rotary", "llama", "qwen3"), OUR_SIZES),
}
"""The sizes of each family of decoders, which can be the backbone of a composed model."""


def named_size(family: str, size: str) -> ModelSize:
    """Look up a size; ConfigError if the family or the size does not exist."""
    if family not in SIZES:
        raise ConfigError(f"model.family is {family!r}, but must be one of {', '.join(SIZES)}")
    if size not in SIZES[family]:
        raise ConfigError(f"model.size is {size!r}, but the sizes of {family} are {', '.join(SIZES[family])}")
    return SIZES[family][size]


ROTATED = {"gpt_neox": 8, "gpt2_rotary": 2, "llama": 2, "qwen3": 2}
"""Divisors of the width of a head: GPT-NeoX rotates a quarter of it in pairs, the others all of it."""


def shape_problems(family: str, size: ModelSize) -> list[Problem]:
    """List the problems with the heads and the width of a model of this family."""
    head, rest = divmod(size.width, size.heads)
    if rest:
        why = f"a width of {size.width} is not divisible by {size.heads} heads; choose heads that divide it"
    elif head % ROTATED.get(family, 1):
        why = (
            f"{family} rotates part of each head's channels in pairs: width / heads is {head}, but must be a multiple of "
            f"{ROTATED[family]}"
        )
    else:
        return []
    return [Problem(why)]
