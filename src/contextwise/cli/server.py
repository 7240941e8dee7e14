"""The server of ``contextwise model serve``: that of transformers, unchanged, with one model that Contextwise loads."""

from typing import Any

from transformers import PreTrainedModel
from transformers.cli.serve import Serve
from transformers.cli.serving import model_manager

from contextwise.models import load_model, load_tokenizer


class OneModel(model_manager.ModelManager):
    """Loads any kind of model here; transformers' own manager knows the classes of transformers alone."""

    force_model: str

    def _load_processor(self, *_: Any, **__: Any) -> Any:
        return load_tokenizer(self.force_model)

    def _load_model(self, *_: Any, **__: Any) -> PreTrainedModel:
        return load_model(self.force_model, device=None if self.device == "auto" else self.device)

    def get_gen_models(self, cache_dir: str | None = None) -> list[dict[str, Any]]:  # type: ignore[override]
        """The model of ``/v1/models``, in place of those in the Hub's cache."""
        return [{"id": self.force_model, "object": "model", "created": 0, "owned_by": ""}]


def run_server(folder: str, host: str, port: int, device: str) -> None:
    """Load the model and serve it until SIGINT or SIGTERM."""
    model_manager.ModelManager = OneModel  # type: ignore[misc]  # what Serve takes
    Serve(folder, host=host, port=port, device=device)
