"""Figures of context scaling: loss by visible context, document lengths, the best training context."""
