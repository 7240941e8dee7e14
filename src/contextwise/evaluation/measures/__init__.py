"""The measures of models: one module or folder for each."""
