"""Training of CUE models: sentence models conditioned on contexts, in the stages of their life.

1. ``settings``: what a recipe's ``model.cue`` may say, stage by stage.
2. ``checks``: what goes together with the rest of a recipe.
3. ``parts``: the configuration and the starting weights of a stage, from earlier runs.
4. ``contexts``: the encoded contexts of each sentence. 5. ``streams``: the examples of a run.
6. ``export``: the whole model, and each part by itself.
"""

from contextwise.training.cue.settings import CueSettings

__all__ = ["CueSettings"]
