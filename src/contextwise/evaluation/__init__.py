"""Measurements of models: a subject, a measure of it, and the result on disk."""
