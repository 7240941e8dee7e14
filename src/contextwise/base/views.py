"""Results as a notebook shows them: as HTML, as a pandas data frame, as a Plotly figure and as a page.

The views of each kind of result are in a module of their own, which is imported at the first use.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

LONGEST_LINE = 160

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class Viewed(ABC):
    """Base class of results that a notebook shows."""

    views: ClassVar[Any]
    """A function that imports the module of views; the package sets it when it is imported."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """What was found, in one line: names, and the main figure with its interval."""

    def __repr__(self) -> str:
        line = f"{type(self).__name__}: {self.answer}"
        return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"

    def __str__(self) -> str:
        """What the verb prints, in 80 columns."""
        return self.views().text_of(self)

    def _repr_html_(self) -> str:
        return self.views().html_of(self)

    def to_pandas(self) -> "pd.DataFrame":
        """The numbers as a data frame; an estimate has its limits in two further columns, ``low`` and ``high``."""
        return self.views().frame_of(self)

    def plot(self) -> "go.Figure":
        """The main figure of the result; a :class:`~contextwise.base.errors.ConfigError` if there is none."""
        return self.views().figure_of(self)

    def page(self, path: str | Path) -> Path:
        """Write the result as one HTML file, which opens from disk without a network.

        Raises:
            ConfigError: ``path`` is a folder.
            DataError: the file cannot be written.
        """
        from contextwise.base.files import expanded  # slow

        path = expanded(path)
        self.views().page_of(self).write(path)
        return path
