"""Sealed folders and values: every flipped bit is found, and nothing else is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import DataError
from contextwise.base.files import read_sealed_json, write_json, write_sealed_json
from contextwise.base.hashes import MANIFEST, check_intact, content_digest, damage, seal, sealed, sha256_file, unsealed


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "inner" / "b").write_bytes(b"\x00\x01")
    (tmp_path / "README.md").write_text("a text")
    seal(tmp_path)
    return tmp_path


def test_an_intact_folder_and_what_may_change(folder):
    assert damage(folder) is None
    (folder / "README.md").write_text("another text")
    (folder / "further").write_text("")
    assert damage(folder) is None
    seal(folder)
    assert set(json.loads((folder / MANIFEST).read_text())["files"]) == {"a.json", "inner/b", "further"}


def test_every_flipped_bit_is_found(folder):
    for file in (folder / "a.json", folder / "inner" / "b", folder / MANIFEST):
        content = file.read_bytes()
        for position in range(0, len(content), 3):
            harmed = bytearray(content)
            harmed[position] ^= 1
            if file.name == MANIFEST and _same_json(harmed, content):  # white space
                continue
            file.write_bytes(harmed)
            assert damage(folder) is not None, (file, position)
        file.write_bytes(content)
    assert damage(folder) is None


def _same_json(a, b):
    try:
        return json.loads(bytes(a)) == json.loads(b)
    except ValueError:
        return False


def test_files_that_are_missing_cut_or_not_to_be_read(folder):
    (folder / "a.json").write_text('{"a": 1')
    assert damage(folder) == "a.json has changed since it was written"
    assert damage(folder, unread="*.json") is None
    (folder / "a.json").unlink()
    assert damage(folder) == "a.json is missing"


@pytest.mark.parametrize("manifest", ['{"files": {}}', "{}", "[]", "", "{", '{"sha256": "0", "files": {}}'])
def test_a_manifest_without_its_hash_is_no_manifest(folder, manifest):
    (folder / MANIFEST).write_text(manifest)
    assert "cannot be read" in damage(folder)


def test_a_link_to_nothing_is_no_damage(folder):
    (folder / ".#config.json").symlink_to("nobody@nowhere")
    check_intact(folder)


def test_folders_of_others_are_left_alone(tmp_path):
    assert damage(tmp_path, required=False) is None
    write_json(tmp_path / MANIFEST, {"format": "of another program", "files": {"a": {}}})
    assert damage(tmp_path, required=False) is None
    assert "no hash" in damage(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.long
@given(values=st.dictionaries(st.text().filter(lambda name: name != "sha256"), VALUES))
def test_values_come_back_through_json(values):
    assert unsealed(json.loads(json.dumps(sealed(values)))) == values


def test_values_that_changed_are_refused(tmp_path):
    file = tmp_path / "x.json"
    write_sealed_json(file, {"loss": 1.25})
    assert read_sealed_json(file, "it") == {"loss": 1.25}
    file.write_text(file.read_text().replace("1.25", "1.26"))
    with pytest.raises(DataError, match="it .*x.json is damaged: it has changed since it was written"):
        read_sealed_json(file, "it")


def test_content_of_a_file_is_its_bytes_and_of_a_folder_its_names_and_bytes(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "inner").mkdir(parents=True)
    for name in ("a", "b", "inner/c"):
        (folder / name).write_text(name)
    assert content_digest(folder / "a") == sha256_file(folder / "a")
    seen = [content_digest(folder), content_digest(folder, [folder / "a", folder / "b"])]
    assert [content_digest(folder), content_digest(folder, [folder / "b", folder / "a"])] == seen
    (folder / "inner" / "c").rename(folder / "c")
    seen.append(content_digest(folder))
    (folder / "c").write_text("d" * 7)
    seen.append(content_digest(folder))
    assert len(set(seen)) == 4
    with pytest.raises(FileNotFoundError):
        content_digest(tmp_path / "absent")
