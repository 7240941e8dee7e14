"""Models in GGUF files, and SmolLM2-135M-Instruct (Q4_1) from a package: converted once into a folder that all else reads."""

import contextlib
import importlib.util
import io
from pathlib import Path

from contextwise.base.errors import CheckpointError, not_installed, one_line
from contextwise.base.files import atomic_directory
from contextwise.base.hashes import cache_folder, seal, sha256_file
from contextwise.base.pretrained import PACKAGED, from_pretrained, without_bars
from contextwise.base.progress import say


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a path or a known name, whose package must be installed, stands for; None for another model."""
    if name in PACKAGED and not Path(name).exists():
        package, install = PACKAGED[name]
        spec = importlib.util.find_spec(package)
        folders = () if spec is None else spec.submodule_search_locations or ()
        for folder in map(Path, folders):
            for file in sorted(folder.glob("*.gguf")):
                return file
        raise CheckpointError(f"the model {name} is in the package {package}, {not_installed(package, install)}")
    path = Path(name)
    return path if path.suffix == ".gguf" and path.is_file() else None


def gguf_folder(name: str) -> Path | None:
    """The folder of the converted model of a GGUF file or a known name, made once; None for another model."""
    file = gguf_file(name)
    return None if file is None else converted(file)


def converted(file: Path) -> Path:
    """The folder with the float32 weights and the tokenizer of a GGUF file, below the cache of Hugging Face; made once."""
    folder = cache_folder("gguf") / f"{file.stem}-{sha256_file(file)[:12]}"
    if folder.exists():
        return folder
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.import_utils import is_gguf_available

    if not is_gguf_available():
        raise CheckpointError(f"{file} is read with the package gguf, {not_installed('gguf')}")
    say(f"{file.name} is converted once, to {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # gguf's progress bars
            config = from_pretrained(AutoConfig, file.parent, gguf_file=file.name)
            config.max_position_embeddings = _positions(file) or config.max_position_embeddings
            model, loaded = from_pretrained(
                AutoModelForCausalLM, file.parent, gguf_file=file.name, config=config, output_loading_info=True
            )
            tokenizer = from_pretrained(AutoTokenizer, file.parent, gguf_file=file.name)
    except Exception as error:
        raise CheckpointError(f"no model could be read from {file}: {one_line(error, 300)}") from error
    if lacking := [*loaded["missing_keys"], *map(str, loaded["mismatched_keys"])]:
        raise CheckpointError(
            f"{file} lacks the weights {', '.join(sorted(lacking)[:3])}, or has them in another shape"
        )
    del model.config.quantization_config  # the weights are float32 now
    model.hf_quantizer = None
    with atomic_directory(folder, "the converted model", replace=True) as written, without_bars():
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
        seal(written)
    return folder


def _positions(file: Path) -> int | None:
    """The longest context of a GGUF file's model, which transformers does not read for every family; None if it names none."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    lengths = [field for name, field in fields.items() if name.endswith(".context_length")]
    return int(lengths[0].contents()) if lengths else None
