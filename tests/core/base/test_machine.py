"""The machine: freed memory is kept if the C library supports that, and versions are known without an installation."""

import ctypes
import platform
from importlib import metadata

import pytest

import contextwise
from contextwise.base import machine
from contextwise.base.errors import ConfigError


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_glibc_accepts_the_setting():
    assert machine.keep_freed_memory()


def test_other_systems_and_c_libraries_are_not_changed(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not machine.keep_freed_memory()
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    assert not machine.keep_freed_memory()


def test_a_machine_that_does_not_describe_itself_is_refused(monkeypatch, tmp_path):
    """Such as a container without ``/proc``; the error of psutil was not explained."""
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the memory of this machine cannot be read .*; mount /proc"):
        machine.describe_environment()


def test_a_source_tree_that_is_not_installed_has_a_version(monkeypatch):
    assert machine.own_version() == contextwise.__version__ == metadata.version("contextwise")

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(machine.metadata, "version", missing)
    assert machine.own_version() == "0+source"


def test_a_busy_machine_is_said_where_times_are_measured(monkeypatch):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (2.9, 9.0, 9.0))
    assert machine.busy() == ""
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (6.2, 0.0, 0.0))
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert machine.busy() == (
        "6 processes want the 2 cores of this machine, so times are longer than on a quiet one; steps of small models suffer "
        "least with the variable OMP_WAIT_POLICY=passive"
    )
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert machine.busy().endswith("than on a quiet one")

    def unobtainable():
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(machine.os, "getloadavg", unobtainable)
    assert machine.busy() == ""
