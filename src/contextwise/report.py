"""Output of results: tables, pages, numbers as words, and lines of progress.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.base.estimates import as_json, count, counted, duration, listed, written
    from contextwise.base.progress import progress_bar, say
    from contextwise.base.tables import Column, Row, Table, terminal
    from contextwise.reports.page import Page, Section, figure

__all__ = ["Column", "Page", "Row", "Section", "Table", "as_json", "count", "counted", "duration", "figure"]
__all__ += ["listed", "progress_bar", "say", "terminal", "written"]
__getattr__, __dir__ = lazy_exports(__name__)
