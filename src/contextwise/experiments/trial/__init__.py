"""Trials: whether one way to train beats another on a text at equal compute, how sure that is, and when to stop."""

from contextwise.experiments.trial.settings import BUILT_IN, TrialSettings, load_trial
from contextwise.experiments.trial.trial import Trial

__all__ = ["BUILT_IN", "Trial", "TrialSettings", "load_trial"]
