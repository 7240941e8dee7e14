"""Synthetic tasks whose lowest possible loss is known exactly at every context length; their settings need no torch."""

from contextwise_papers.intrinsic_entropy.synthetic.parity import MASK, Parity, ParityData, ParitySettings, VisibleLaw

__all__ = ["MASK", "Parity", "ParityData", "ParitySettings", "VisibleLaw"]
