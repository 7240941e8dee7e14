"""Scoring of texts: whole documents in windows, single sentences, and targets at truncated contexts."""
