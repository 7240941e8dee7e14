"""The attention of models in one text, and the gain from predicting the context: ``contextwise attention``."""
