"""Run folders and comparisons as one HTML page that opens from disk, without a network."""

from contextwise.reports.page import write_comparison_page, write_report
from contextwise.reports.words import verdict

__all__ = ["verdict", "write_comparison_page", "write_report"]
