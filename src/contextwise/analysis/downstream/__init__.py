"""Trained models on what comes after pretraining: tasks, long tasks, instructions and a judge, attention in a text.

Source: ContextLM, Sections 3.3, 3.4, 4.1 and 4.3. Each measure trains its models as :mod:`contextwise.analysis.trained_models`
does, in the same folders, so that items with the same recipe and the same names of models share their runs.
"""
