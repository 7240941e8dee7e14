"""For your own tests: assert that a causal language model uses no later tokens.

    def test_my_model_is_causal():
        assert_causal(MyModelForCausalLM(tiny_config))

It takes any causal language model of Hugging Face transformers. Tiny random weights suffice: a second on a CPU.
"""

from typing import Any

from transformers import PreTrainedModel

from contextwise.evaluation.measures.causality.effects import Causality, Effect
from contextwise.evaluation.measures.causality.perturbations import measure_causality


def assert_causal(model: PreTrainedModel, **options: Any) -> None:
    """Fail, with a table of the effects, if later tokens change earlier logits of a decoder-only causal language model.

    Args:
        options: as :func:`measure_causality` takes them (``lengths``, ``chunk_size``, ``packed``, ``tolerance``, ``seed``).

    Raises:
        AssertionError: there is a leak, or replaced tokens change no logits at all.
        ConfigError: this is no causal language model.
    """
    result = measure_causality(model, **options)
    if not result.causal:
        raise AssertionError(str(result))


__all__ = ["Causality", "Effect", "assert_causal", "measure_causality"]
