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
