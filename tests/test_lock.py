"""``requirements.lock`` has the versions of ``constraints.txt`` with hashes, and all that the package needs but torch."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PINS = {
    canonicalize_name(pin.name): pin
    for pin in (Requirement(line.rstrip(" \\")) for line in LOCK.splitlines() if line[:1].isalnum())
    if pin.marker is None or pin.marker.evaluate()
}


def needed(name, seen):
    """A package and all that it needs here, by the metadata of the installed packages."""
    if name in seen or name == "torch":
        return
    seen.add(name)
    for requirement in map(Requirement, requires(name) or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed(canonicalize_name(requirement.name), seen)


def test_versions_are_those_that_are_tested():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    tested = {canonicalize_name(pin.name): str(pin.specifier) for pin in map(Requirement, lines)}
    assert {name: str(pin.specifier) for name, pin in PINS.items()} == {name: tested.get(name) for name in PINS}


def test_nothing_is_missing_but_torch_and_everything_has_its_hashes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {canonicalize_name(r.name): r.specifier for r in map(Requirement, project["dependencies"])}
    seen = set()
    for name in wanted:
        needed(name, seen)
    assert set(PINS) == seen  # `make lock` makes the file anew
    for name, specifier in wanted.items():
        assert name == "torch" or next(iter(PINS[name].specifier)).version in specifier, name
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.strip())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)
    assert "://" not in LOCK and "index" not in LOCK
