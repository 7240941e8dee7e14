"""Run folders, comparisons and sweeps as one HTML page each, which opens from disk, without a network."""

from contextwise.reports.page import write_comparison_page, write_report
from contextwise.reports.sweep_page import write_sweep_page
from contextwise.reports.words import verdict

__all__ = ["verdict", "write_comparison_page", "write_report", "write_sweep_page"]
