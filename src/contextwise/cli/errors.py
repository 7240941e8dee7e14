"""Print an error to the terminal: one message, no traceback, and an exit status."""

import os

from rich.text import Text

from contextwise.base.errors import ContextwiseError
from contextwise.base.progress import console

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it (128 + SIGINT)."""


def first_process() -> bool:
    """Whether this process is the one that speaks; torchrun numbers those of a launch in ``RANK``."""
    return os.environ.get("RANK", "0") == "0"


def print_error(error: ContextwiseError) -> None:
    """Print ``error: <message>`` on standard error, once for all the processes of a launch.

    The message holds text of users (paths, values): it is shown as it is, brackets included, and control
    characters, which could steer the terminal, are shown as escapes.
    """
    if not first_process():
        return
    message = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(error))
    # Lines are broken to fit a terminal only: in a log file a broken path could not be searched for.
    console.print(Text.assemble(("error", "bold red"), ": ", message), soft_wrap=not console.is_terminal)
