"""Trials: whether one way to train beats another on a text at equal compute, how sure that is, and when to stop."""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.experiments.trial.settings import BUILT_IN, TrialSettings, load_trial
    from contextwise.experiments.trial.trial import Trial

__all__ = ["BUILT_IN", "Trial", "TrialSettings", "load_trial"]

# Settings that are at fault are refused before torch is imported.
__getattr__, __dir__ = lazy_exports(__name__)
