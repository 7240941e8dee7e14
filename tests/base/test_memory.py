"""Freed memory is kept where the C library can."""

import ctypes
import platform

import pytest

from contextwise.base import memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_glibc_takes_the_setting():
    assert memory.keep_freed_memory()


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_left_alone(system, monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", system)
    assert not memory.keep_freed_memory()


def test_a_c_library_without_the_setting_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not memory.keep_freed_memory()
