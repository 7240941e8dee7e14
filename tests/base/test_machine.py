"""Freed memory is kept if the C library supports that."""

import ctypes
import platform

import pytest

from contextwise.base import machine


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_glibc_accepts_the_setting():
    assert machine.keep_freed_memory()


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_not_changed(system, monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", system)
    assert not machine.keep_freed_memory()


def test_a_c_library_without_the_setting_is_not_changed(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not machine.keep_freed_memory()
