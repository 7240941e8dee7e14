"""Training of CUE models: sentence models conditioned on contexts, in the stages of ``model.cue``.

1. ``parts``: the configuration and the starting weights of a stage, from earlier runs.
2. ``sentences``: the examples of a run, with the encoded contexts of each sentence.
3. ``parameters``: the parts of a model, counted.
"""
