"""Folders of models, which are found without torch."""

from pathlib import Path

from contextwise.base.errors import CheckpointError
from contextwise.base.gguf import gguf_folder
from contextwise.base.pretrained import refuse_missing
from contextwise.base.runs import RunFolder


def model_folder(path_or_name: str | Path) -> str:
    """Return the folder to load from: ``RUN/model`` for a run folder, the converted model of a GGUF file, else the argument.

    Raises:
        CheckpointError: the run is not finished, or the folder contains no model.
    """
    if (converted := gguf_folder(str(path_or_name))) is not None:
        return str(converted)
    refuse_missing(path_or_name)
    path = Path(path_or_name)
    if not path.exists():  # a name on the Hub
        return str(path_or_name)
    for folder in (path / "model", path):
        if (folder / "config.json").exists():
            return str(folder)
    if (path / "recipe.yaml").exists():
        raise RunFolder(path).unfinished()
    if (path / "adapter_config.json").exists():
        raise CheckpointError(
            f"{path} is an adapter without its model; merge it (peft's merge_and_unload), and save the model"
        )
    if path.is_file():
        such = f", such as {path.parent}" if (path.parent / "config.json").exists() else ""
        raise CheckpointError(f"{path} is a file; give the folder of a model{such}")
    raise CheckpointError(f"{path} contains no model: neither config.json nor model/config.json exists")
