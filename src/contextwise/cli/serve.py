"""``contextwise serve``."""

import sys
from typing import Annotated

import typer

from contextwise.base.errors import ConfigError
from contextwise.base.progress import say
from contextwise.cli.options import Model


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    device: Annotated[str, typer.Option(help="cpu, cuda, …; auto: a GPU if there is one.")] = "auto",
) -> None:
    """Answer OpenAI-compatible requests, with the server of transformers.

    POST /v1/completions continues a prompt; /v1/chat/completions needs a
    tokenizer with a chat template. Requests name the model as it is printed.
    """
    import torch
    from transformers.utils.import_utils import is_serve_available

    from contextwise.models import model_folder
    from contextwise.models.loading import load_config, load_tokenizer, model_class

    if not is_serve_available():
        raise ConfigError("the server's packages are not installed; pip install 'contextwise[serve]'")
    from transformers.cli.serve import Serve

    folder = model_folder(model)
    kind = model_class(load_config(folder))
    # The server looks for the class among those of transformers (whose module replaces itself while it is imported).
    setattr(sys.modules["transformers"], kind.__name__, kind)
    if device == "auto" and not torch.cuda.is_available():
        device = "cpu"
    if load_tokenizer(folder).chat_template is None:
        say("note: its tokenizer has no chat template, so that only /v1/completions answers")
    say(f"serving the model {folder} at http://{host}:{port}/v1; Ctrl-C ends it")
    Serve(force_model=folder, host=host, port=port, device=device)
