"""Answers of a causal language model: prompts cut to a visible context, their batches, and the readers that answer them."""
