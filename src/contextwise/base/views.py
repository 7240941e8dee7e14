"""Results as a notebook shows them: as HTML, as a pandas data frame, as a Plotly figure and as a page.

What each result shows is in :mod:`contextwise.reports.views`, which is imported when it is first asked.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class Viewed:
    """Base class of results that a notebook shows."""

    def _repr_html_(self) -> str:
        return _views().html_of(self)

    def to_pandas(self) -> "pd.DataFrame":
        """The numbers as a data frame; an estimate has its limits in two further columns, ``low`` and ``high``."""
        return _views().frame_of(self)

    def plot(self) -> "go.Figure":
        """The main figure of the result; a :class:`~contextwise.base.errors.ConfigError` if there is none."""
        return _views().figure_of(self)

    def page(self, path: str | Path) -> Path:
        """Write the result as one HTML file, which opens from disk without a network.

        Raises:
            ConfigError: ``path`` is a folder.
            DataError: the file cannot be written.
        """
        _views().page_of(self).write(Path(path))
        return Path(path)


def _views() -> Any:
    return importlib.import_module("contextwise.reports.views")
