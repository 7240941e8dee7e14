"""The common parts of all measurements: the subject, the measure, the result on disk, and its unfinished work.

    subject = Subject("runs/contextlm")                      # a run, a folder, a Hub name, or a loaded model
    result = measure(subject, Loss(context=256), corpus)     # opened again if it was made before
    print(result.summary["loss"], result.path)

A new measure is a subclass of :class:`Measure` and an entry point of the group ``contextwise.measures``
(``docs/extend.md``).
Nothing here imports torch before a model is opened, so that settings are checked and help is printed at once.
"""

from contextwise.base.hashes import content_key
from contextwise.evaluation.kernel.measure import InputFile, Measure, Outcome, measure, measures
from contextwise.evaluation.kernel.result import Result, is_result, results_of
from contextwise.evaluation.kernel.subject import Subject, open_documents
from contextwise.evaluation.kernel.work import Journal, Work

__all__ = ["InputFile", "Journal", "Measure", "Outcome", "Result", "Subject", "Work", "content_key"]
__all__ += ["is_result", "measure", "measures", "open_documents", "results_of"]
