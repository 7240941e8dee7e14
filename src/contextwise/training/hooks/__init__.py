"""What a run does beside its optimizer steps: validation, context curve, early stopping, progress on the terminal."""
