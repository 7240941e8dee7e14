"""Models and tokenizers of strangers: their code does not run, nothing of it is exported, and nothing is asked."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from contextwise.base.errors import CheckpointError, DataError
from contextwise.base.trust import trust
from contextwise.data.tokenizers import load_tokenizer as load_corpus_tokenizer
from contextwise.models import load_model, load_tokenizer
from contextwise.models.export import export_model_folder
from contextwise.models.loading import load_config
from small import save_model, small_gpt2

CODE = """
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
Path({ran!r}).touch()
class EvilConfig(GPT2Config):
    model_type = "evil"
class Evil(GPT2LMHeadModel):
    config_class = EvilConfig
class EvilTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose configuration, class and tokenizer are code in its folder, which leaves a file ``ran``."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save_model(tmp_path / "model", small_gpt2())
    (folder / "evil.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    for name, values in {
        "config.json": {
            "model_type": "evil",
            "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "EvilTokenizer",
            "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]},
        },
    }.items():
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def test_code_of_a_model_does_not_run(evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    for load in (load_config, load_model, load_tokenizer):
        with pytest.raises(CheckpointError, match="--trust-remote-code"):
            load(evil)
    with pytest.raises(DataError, match="--trust-remote-code"):
        load_corpus_tokenizer(str(evil))
    assert not (tmp_path / "ran").exists()


def test_code_that_is_trusted_runs(evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "remote_code", True)
    assert load_config(evil).model_type == "evil"
    assert (tmp_path / "ran").exists()


def test_the_command_line_trusts_only_where_it_is_told_to(
    contextwise, evil: Path, tmp_path: Path, corpus_folder: Path
) -> None:
    contextwise.refused(f"generate {evil} the", "give --trust-remote-code")
    assert not (tmp_path / "ran").exists()
    status, output, errors = contextwise(f"model parameters {evil} --trust-remote-code")
    assert status == 0 and "total" in output, errors
    assert (tmp_path / "ran").exists()
    contextwise.refused(f"generate {evil} the", "give --trust-remote-code")


def test_every_load_passes_through_one_function() -> None:
    import contextwise

    root = Path(str(contextwise.__file__)).parents[1]
    calls = {
        path.relative_to(root).as_posix()
        for path in root.glob("contextwise*/**/*.py")
        for line in path.read_text().splitlines()
        if ".from_pretrained(" in line and not line.strip().startswith(("f'", 'f"', '"', "*(", "#"))
    }
    supers = ("/models/variant/modeling", "_papers/cue/parts", "_papers/cue/modeling")  # super().from_pretrained(
    assert calls == {f"contextwise{name}.py" for name in ("/base/pretrained", *supers)}


def test_an_export_holds_no_code_no_pickle_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", small_gpt2())
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "_name_or_path": "/home/someone/secret",
        "auto_map": {"AutoConfig": "evil.EvilConfig"},
        "note": "/home/someone/x",
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("evil.py", "pytorch_model.bin", "training_args.bin", "optimizer.pt", "weights.pkl"):
        (folder / name).write_bytes(b"evil")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "notes.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "LICENSE").write_text("license")
    out = export_model_folder(folder, tmp_path / "out")
    names = {path.name for path in out.iterdir()}
    assert names == {
        *(
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "LICENSE",
            "manifest.json",
        )
    }
    assert "someone" not in (out / "config.json").read_text() and "auto_map" not in (out / "config.json").read_text()
    assert AutoConfig.from_pretrained(out).n_embd == 16
