"""Trainer callbacks: validation, context curve, early stopping, progress on the terminal."""
