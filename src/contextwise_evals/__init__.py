"""Tasks of lm-evaluation-harness, tasks by visible context, RULER, and infilling."""
