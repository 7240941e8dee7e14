"""Tasks of lm-evaluation-harness, with local files and without the whole matrix of logits.

- :mod:`.model`: any causal language model as the harness's model; the head is applied to the continuation only, in pieces.
- :mod:`.files` and :mod:`.fields`: local files of a task, and the harness's fields from the forms that such files have.
- :mod:`.tasks`: the harness's own task definitions, on those files or on the Hub's.
- :mod:`.running`: settings to results; :mod:`.tables`: results to a table.

Needs the extra ``contextwise[eval]``.
"""
