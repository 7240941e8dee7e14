"""The server of ``contextwise model serve``: ``transformers serve`` for one model of any kind that Contextwise loads."""

from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from jinja2 import TemplateError
from transformers import PreTrainedModel
from transformers.cli.serve import Serve
from transformers.cli.serving import model_manager
from transformers.cli.serving import server as transformers_server

from contextwise.base.errors import ConfigError, ContextwiseError, one_line
from contextwise.evaluation.generation import allowed_new_tokens
from contextwise.models import load_model, load_tokenizer


class OneModel(model_manager.ModelManager):
    """Loads any kind of model here; transformers' own manager knows the classes of transformers alone."""

    force_model: str

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """The name as it is, for the answers; transformers would add a revision."""
        return model_id

    def get_gen_models(self, *_: Any) -> list[dict[str, Any]]:
        """The models that clients can ask: this one; transformers would list those of the Hub's cache."""
        return [{"id": self.force_model, "object": "model", "created": 0, "owned_by": ""}]

    def _load_processor(self, *_: Any, **__: Any) -> Any:
        return load_tokenizer(self.force_model)

    def _load_model(self, *_: Any, **__: Any) -> PreTrainedModel:
        model: Any = load_model(self.force_model, device=None if self.device == "auto" else self.device)
        if model.generation_config.do_sample is None:  # else temperature and top_p would have no effect
            model.generation_config.do_sample = True
        model.generate = partial(generate_within_positions, model, model.generate)
        return model


def generate_within_positions(model: Any, generate: Any, *, input_ids: Any, generation_config: Any, **more: Any) -> Any:
    """Generate to the model's last position at most; a ConfigError if the prompt is empty or has no position left."""
    if (tokens := input_ids.shape[-1]) == 0:
        raise ConfigError("the prompt has no tokens")
    generation_config.max_new_tokens = allowed_new_tokens(model, tokens, int(generation_config.max_new_tokens or 0))
    return generate(input_ids=input_ids, generation_config=generation_config, **more)


def answered_server(build: Any, *parts: Any, **options: Any) -> FastAPI:
    """The application of transformers, with status 400 for a request that it cannot read or answer, in place of 500."""

    async def refused(_: Request, error: Exception) -> JSONResponse:
        why = str(error) if isinstance(error, ContextwiseError) else f"{type(error).__name__}: {error}"
        return JSONResponse({"detail": one_line(f"the request cannot be answered: {why}")}, 400)

    application: FastAPI = build(*parts, **options)
    for kind in (AttributeError, KeyError, TypeError, ValueError, TemplateError):
        application.add_exception_handler(kind, refused)
    return application


def serve(model: str, device: str, host: str, port: int) -> None:
    """Serve a run, a model's folder or a known model until SIGINT or SIGTERM."""
    model_manager.ModelManager = OneModel  # type: ignore[misc]  # where Serve takes its manager from
    transformers_server.build_server = partial(answered_server, transformers_server.build_server)
    Serve(force_model=model, device=device, host=host, port=port)
