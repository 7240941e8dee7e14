"""``contextwise evaluate``: a model's losses on held-out documents, how well it fills holes, and whether it sees what it must
not."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextwise.base.errors import ConfigError
from contextwise.base.progress import console
from contextwise.cli.contextwise import contexts_of, evaluate_contextwise, refuse_without
from contextwise.cli.options import BatchTokens, Device, Dtype, Model, Split

if TYPE_CHECKING:
    from contextwise.models.causality import Causality


def evaluate(
    model: Model,
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", help="A prepared corpus; with --causality, not needed.", show_default=False),
    ] = None,
    split: Split = "validation",
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a window; not given: the training context, else the model's, up to 1024. With --contextwise "
            "it may be longer than the training context, where positions are rotary.",
            show_default=False,
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Between windows: each token is predicted from CONTEXT - STRIDE tokens at least, "
            "or from all that precede it; not given: half the context.",
            show_default=False,
        ),
    ] = None,
    limit_documents: Annotated[
        int | None, typer.Option(help="Score only the first N documents.", show_default=False)
    ] = None,
    batch_tokens: BatchTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; not given: RUN/evaluation/CORPUS-SPLIT, or evaluation/MODEL/CORPUS-SPLIT. "
            "With --infill a JSON file; not given: infill-NAME.json there.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    causality: Annotated[
        bool,
        typer.Option(
            "--causality",
            help="Measure on random tokens, in float32, whether later tokens, padding, packed neighbours or the "
            "cache reach the past; exit status 1 if they do.",
        ),
    ] = False,
    infill: Annotated[
        Path | None,
        typer.Option(
            "--infill",
            metavar="FILE_OR_CORPUS",
            help="Fill holes instead: one line of each document of a prepared corpus or of JSON Lines with 'text', "
            "or the tasks of a file in HumanEval-infilling's form. Texts are compared; no code is ever executed.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="With --infill: of the choice of lines; with --contextwise: of targets."),
    ] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="With --infill: most tokens of a middle.")] = 64,
    spm: Annotated[
        bool,
        typer.Option(
            "--spm", help="With --infill: ask a decoder in the order suffix, prefix, middle, not PSM."
        ),
    ] = False,
    contextwise: Annotated[
        bool,
        typer.Option(
            "--contextwise",
            help="Measure the loss at each number of visible tokens instead: how much of its context the model uses.",
        ),
    ] = False,
    mode: Annotated[
        str | None,
        typer.Option(
            help="With --contextwise: running, one pass over windows (not given: this); or truncated, the same targets "
            "at every context.",
            show_default=False,
        ),
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help="With --mode truncated: visible tokens; not given: the powers of two up to --context.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="With --mode truncated: how many targets; not given: 2048.", show_default=False),
    ] = None,
    worth: Annotated[
        float | None,
        typer.Option(
            help="With --contextwise: nats per token that the next doubling of the effective context is worth; not "
            "given: 0.01.",
            show_default=False,
        ),
    ] = None,
    rope: Annotated[
        str | None,
        typer.Option(
            help="With --contextwise: how rotary positions are extended: none (not given: this), linear, dynamic, yarn.",
            show_default=False,
        ),
    ] = None,
    rope_factor: Annotated[
        float | None,
        typer.Option(
            help="With --rope: by how much; not given: the context over the training context.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Score every token of held-out documents.

    Prints loss, perplexities and bits per byte with 95% intervals over
    documents, and writes them with the loss of each document and each token.

    With --infill: exact match (without white space at the end) and edit
    similarity (1 - characters to delete and insert / characters of both) of
    the middles that the model writes, with 95% intervals over documents.

    With --contextwise: loss at each number of visible tokens, best-context
    loss and effective context, with 95% intervals over documents.
    """
    curve: dict[str, Any] = {"mode": mode, "contexts": contexts, "samples": samples, "worth": worth}
    curve |= {"rope": rope, "rope_factor": rope_factor}
    if not contextwise:
        refuse_without(**curve)
    else:
        given = {
            "--stride": stride,
            "--causality": causality or None,
            "--infill": infill,
            "--spm": spm or None,
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is given together with --contextwise; leave one of the two out")
        curve["contexts"] = None if contexts is None else contexts_of(contexts)
        curve |= {"context": context, "limit_documents": limit_documents}
        curve["seed"] = seed or None
        evaluate_contextwise(
            model,
            corpus,
            split,
            as_json,
            curve,
            batch_tokens=batch_tokens,
            dtype=dtype,
            device=device,
            out=out,
        )
        return
    if infill is not None:
        given = {"--corpus": corpus, "--stride": stride, "--causality": causality or None}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is given together with --infill; leave one of the two out")
        options = {
            "context": context,
            "batch_tokens": batch_tokens,
            "dtype": dtype,
            "device": device,
            "out": out,
        }
        _infill(
            model,
            infill,
            split,
            seed,
            limit_documents,
            as_json,
            **options,
            spm=spm,
            max_new_tokens=max_new_tokens,
        )
        return
    if spm:
        raise ConfigError("--spm is of use with holes to fill only; give --infill")
    if corpus is None and not causality:
        raise ConfigError("there is nothing to evaluate on; give a prepared corpus with --corpus")
    found = _measured(model, dtype, device) if causality else None
    if found is not None:
        if not as_json or corpus is None or not found.causal:
            _print_causality(found, as_json)
        if not found.causal:
            raise typer.Exit(1)
    if corpus is None:
        return
    from rich.console import Console

    from contextwise.data import Corpus
    from contextwise.evaluation.evaluator import evaluate_model, trained_on
    from contextwise.evaluation.tables import evaluation_heading, evaluation_table
    from contextwise.training.signals import StopRequest

    documents = Corpus.open(corpus, split=split)
    with StopRequest().listening() as stop:
        evaluation = evaluate_model(
            model,
            documents,
            context=context,
            stride=stride,
            limit_documents=limit_documents,
            batch_tokens=batch_tokens,
            dtype=dtype,
            device=device,
            out=out,
            should_stop=lambda: bool(stop),
        )
    if trained_on(model, documents):
        console.print(
            "note: the run was trained on these very documents; they are not held out", soft_wrap=True
        )
    if as_json:
        summary = (
            evaluation.summary if found is None else {**evaluation.summary, "causality": found.to_dict()}
        )
        print(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(evaluation_heading(evaluation.summary))
    printed.print(evaluation_table(evaluation.summary))
    printed.print(f"written to {evaluation.path}/", markup=False, soft_wrap=True)


def _infill(
    model: str, data: Path, split: str, seed: int, limit: int | None, as_json: bool, **options: Any
) -> None:
    from rich.console import Console

    from contextwise.evaluation.infill_scores import evaluate_infill, infill_heading, infill_table
    from contextwise.evaluation.infill_tasks import open_tasks
    from contextwise.training.signals import StopRequest

    if limit is not None and limit < 1:
        raise ConfigError(f"--limit-documents is {limit}; it must be at least 1")
    tasks = open_tasks(data, split, seed, limit)
    with StopRequest().listening() as stop:
        evaluation = evaluate_infill(model, tasks, **options, should_stop=lambda: bool(stop))
    if as_json:
        print(json.dumps(evaluation.summary, indent=2, ensure_ascii=False))
        return
    printed = Console(highlight=False)
    printed.print(infill_heading(evaluation.summary))
    printed.print(infill_table(evaluation.summary))
    printed.print(f"written to {evaluation.path}", markup=False, soft_wrap=True)


def _measured(model: str, dtype: str, device: str) -> "Causality":
    """Load the model, in float32 unless told otherwise: in coarser types small leaks pass for rounding."""
    from contextwise.evaluation.evaluator import chosen_device, chosen_dtype
    from contextwise.models import load_model
    from contextwise.models.causality import measure_causality

    place = chosen_device(device)
    kind = chosen_dtype("float32" if dtype == "auto" else dtype, place)
    return measure_causality(load_model(model, dtype=kind, device=place))


def _print_causality(found: "Causality", as_json: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from contextwise.models.causality.effects import COLUMNS

    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in zip(COLUMNS, ("left", "right", "right", "right", "left"), strict=True):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in found.rows():
        table.add_row(*row)
    printed = Console(highlight=False)
    printed.print(found.heading, markup=False)
    printed.print(table)
    for note in found.notes:
        printed.print(note, markup=False)
