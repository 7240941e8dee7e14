"""The errors that a user can mend.

Each message is one sentence or two: what is wrong, where (the field or file, with the value found there), and the mend.
The command line prints it without a traceback and exits with :attr:`ContextwiseError.exit_status`.
"""


class ContextwiseError(Exception):
    """Base of all errors that Contextwise raises on purpose."""

    exit_status = 2


class ConfigError(ContextwiseError, ValueError):
    """A recipe, an option or an argument is wrong; names the key, the value and the mend.

    Also a ``ValueError``, which is what Python callers of the model classes expect.
    """


class DataError(ContextwiseError):
    """A source text, a corpus or a tokenizer is wrong; names the file (and line), and the mend."""


class CheckpointError(ContextwiseError):
    """A checkpoint, a run folder or an exported model is missing, damaged or does not fit."""


class TrainingError(ContextwiseError):
    """Training itself went bad (a loss that is not finite, for example): not the input's fault."""

    exit_status = 1


class Interrupted(ContextwiseError):
    """The process was asked to stop (SIGTERM, SIGINT) and stopped after saving."""

    exit_status = 1
