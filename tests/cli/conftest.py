"""The command line as a user types it."""

import pytest
from transformers.utils import logging

from contextwise.cli import main


@pytest.fixture
def contextwise(workplace, monkeypatch, capsys):
    """Type a command in the folder ``workplace``, a fixture of the test's own module; gives (exit status, output, errors)."""
    # The command line turns these bars off before transformers is imported, which tests have done long ago.
    logging.disable_progress_bar()

    def typed(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(workplace)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("sys.argv", ["contextwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_status:
            main()
        output, errors = capsys.readouterr()
        return int(exit_status.value.code or 0), output, errors

    yield typed
    logging.enable_progress_bar()
