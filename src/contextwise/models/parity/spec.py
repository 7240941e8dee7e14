"""Specifications of the models of the parity task."""

from transformers import AutoModelForSequenceClassification

from contextwise.models.parity.config import ParityMLPConfig, ParityTransformerConfig
from contextwise.models.parity.modeling import ParityMLP, ParityTransformer
from contextwise.models.spec import register_model
from contextwise.models.stock.spec import DecoderSpec

register_model(ParityMLPConfig, ParityMLP, DecoderSpec(ParityMLP), AutoModelForSequenceClassification)
register_model(
    ParityTransformerConfig,
    ParityTransformer,
    DecoderSpec(ParityTransformer),
    AutoModelForSequenceClassification,
)
