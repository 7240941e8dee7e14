"""Run folders, comparisons, sweeps and measurements as one HTML page each, which opens from disk, without a network."""

from contextwise.reports.runs import write_comparison_page, write_report
from contextwise.reports.sweep import write_sweep_page

__all__ = ["write_comparison_page", "write_report", "write_sweep_page"]
