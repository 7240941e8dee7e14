"""Answers of a causal language model: prompts cut to a visible context, batches of them, and who answers them."""
