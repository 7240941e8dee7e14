"""Use a model in other ways, see what it is made of, or check a run."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from contextwise.base.errors import CheckpointError, ConfigError, not_installed
from contextwise.base.progress import say
from contextwise.base.recipes import shipped_recipes
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Column, Row, Table
from contextwise.cli.common import AsJson, Model, refuse_absent, show, show_json, show_line


def parameters(
    source: Annotated[
        str,
        Argument(
            metavar="RECIPE_OR_RUN",
            help="A recipe (a YAML file or a name), a run, a Hugging Face model folder, or a name on the Hub.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Report where a model's parameters are, and which of them are trained.

    Nothing is trained and no weights are loaded. The runs that a recipe
    builds on need not be there yet if their recipes lie beside it.
    """
    if not (source.endswith((".yaml", ".yml")) or shipped_recipes(source)):
        refuse_absent(source)
    from contextwise.training.parameters import Module, modules_of

    what, modules = modules_of(source)
    if as_json:
        show_json(modules)
        return
    total = Module("total", sum(m.parameters for m in modules), sum(m.trained for m in modules))
    staged = any(module.stages for module in modules)
    rows = []
    for module in [*modules, total]:
        cells = [module.name, f"{module.parameters:,}", f"{module.parameters / total.parameters:.1%}"]
        cells.append(f"{module.trained:,}" if module.trained else "frozen")
        stages = "" if module is total else ", ".join(module.stages) or "none"
        rows.append(Row([*cells, *([stages] if staged else [])], last=module is modules[-1]))
    columns: list[Column | str] = ["Module", "Parameters", "Share", "Trained"]
    columns += [Column("Stages that train", align="left")] if staged else []
    show_line(f"Parameters of {what}:")
    show(Table("", columns, rows))


def verify(run: Annotated[Path, Argument(help="A run, finished or stopped.")], as_json: AsJson = False) -> None:
    """Check that a run's files are intact and that its newest checkpoint continues as the run did.

    All hashes are compared, and the steps after the checkpoint are taken again:
    their losses must be those of metrics.jsonl, bit for bit on the same machine.
    Nothing is written to the run. Exit status 2 if a check fails.
    """
    RunFolder.open(run)
    from contextwise.training.verify import verify_run

    checks = []
    for check in verify_run(run):
        checks.append(check)
        if not as_json:
            show_line(f"{'passed' if check.passed else 'FAILED'}  {check.what}: {check.found}")
    if as_json:
        show_json(checks)
    failed = [check for check in checks if not check.passed]
    if failed:
        first = f"{failed[0].what}: {failed[0].found}"
        raise CheckpointError(f"{len(failed)} of {len(checks)} checks of {run} failed, the first: {first}")


def serve(
    model: Model,
    host: Annotated[str, Option(help="Address to listen on.")] = "localhost",
    port: Annotated[int, Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    device: Annotated[str, Option(help="cpu, cuda, …; auto: a GPU if there is one.")] = "auto",
) -> None:
    """Answer OpenAI-compatible requests: `transformers serve` for a model of any kind.

    POST /v1/completions continues a prompt; /v1/chat/completions and
    /v1/responses need a tokenizer with a chat template. A request that names a
    model names it as here.
    """
    refuse_absent(model)
    from transformers.utils.import_utils import is_serve_available

    from contextwise.models import load_tokenizer
    from contextwise.models.folders import model_folder
    from contextwise.models.loading import check_generates, load_config

    if not is_serve_available():
        raise ConfigError(f"the server needs a package {not_installed('fastapi openai uvicorn')}")
    from contextwise.cli import server

    folder = model_folder(model)
    check_generates(load_config(folder))
    if load_tokenizer(folder).chat_template is None:
        say("note: its tokenizer has no chat template, so that only /v1/completions can answer")
    say(f"serving the model {model} at http://{host}:{port}/v1; Ctrl-C ends it")
    server.serve(model, device, host, port)
