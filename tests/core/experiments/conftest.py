"""Fixtures of the tests of run sets."""

from claimed_sweeps import claimed, settings  # noqa: F401
