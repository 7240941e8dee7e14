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


@pytest.mark.parametrize(
    ("vendor", "flags", "amx", "fast"),
    [
        ("GenuineIntel", "avx512_bf16 avx512_fp16", True, True),  # Sapphire Rapids
        ("GenuineIntel", "avx512_bf16 avx512_fp16", False, False),  # the same, in a virtual machine that hides AMX
        ("GenuineIntel", "avx512_bf16", False, True),  # Cooper Lake
        ("AuthenticAMD", "avx512_bf16", False, True),  # Zen 4
        ("AuthenticAMD", "avx2", False, False),
    ],
)
def test_bf16_is_fast_where_its_products_are(vendor, flags, amx, fast, monkeypatch):
    """Where AMX is hidden, steps in bf16 take 1.33 times as long (`benchmarks/results/training_step-fp32-cpu.json`)."""
    lines = {"vendor_id": vendor, "flags": flags}
    monkeypatch.setattr(machine, "_line_of", lambda file, name: lines[name])
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: "avx512_bf16" in flags)
    assert machine.has_fast_bf16("cpu") is fast
