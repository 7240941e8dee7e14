"""The processes that tests start."""

from processes import Program


def test_what_processes_share_is_imported_before_they_are_forked():
    """Importing torch, transformers and the trainer takes seconds of each process otherwise."""
    shared = ("preloaded", "torch", "transformers.trainer", "contextwise.training.trainer", "contextwise.cli.common")
    output, errors = Program(f"import sys; print([name for name in {shared} if name not in sys.modules])").communicate()
    assert output == "[]\n", errors
