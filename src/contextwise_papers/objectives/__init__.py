"""The objectives chapter: its pretraining objectives, multi-token prediction, and its exercises and tables as items."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise_papers.objectives.infilling import Infilling
    from contextwise_papers.objectives.instruction import Instruction
    from contextwise_papers.objectives.multitoken import MultiTokenConfig, MultiTokenForCausalLM
    from contextwise_papers.objectives.spans import UL2, SpanCorruption

__all__ = ["UL2", "Infilling", "Instruction", "MultiTokenConfig", "MultiTokenForCausalLM", "SpanCorruption"]
__getattr__, __dir__ = lazy_exports(__name__)
