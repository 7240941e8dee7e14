"""``contextwise evaluate``: a model's losses on held-out documents, and whatever else is asked of it: how well it fills holes,
how much context it uses, the harness's tasks, sentences with contexts, n-best lists, and whether it sees what it must not."""

from pathlib import Path
from typing import Annotated, Any

import typer

from contextwise.base.errors import ConfigError
from contextwise.cli.options import BatchTokens, Device, Dtype, Model, Split

PLAIN = "corpus"
"""Scoring documents, which needs no option of its own."""
TAKEN_BY = {
    "corpus": (PLAIN, "contextwise", "sentences"),
    "context": (PLAIN, "contextwise", "infill", "tasks"),
    "stride": (PLAIN,),
    "causality": (PLAIN,),
    "spm": ("infill",),
    "limit_documents": (PLAIN, "contextwise", "infill", "tasks", "sentences"),
    "mode": ("contextwise",),
    "contexts": ("contextwise", "sentences"),
    "samples": ("contextwise",),
    "worth": ("contextwise",),
    "rope": ("contextwise",),
    "rope_factor": ("contextwise",),
    "shots": ("tasks",),
    "task_data": ("tasks",),
    "skip_missing": ("tasks",),
    "drop_contexts": ("sentences",),
    "weight": ("rescore",),
}
"""What can be asked, by the option that asks for it, of each option that not all of them take."""


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
            help="With --mode truncated: visible tokens; not given: the powers of two up to --context. With --sentences: "
            "kinds of context that the model is given, or none; not given: all that it was trained with.",
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
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="TASK,TASK,…",
            help="Tasks of lm-evaluation-harness instead.",
            show_default=False,
        ),
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help="With --tasks: examples before a question; not given: 0.",
            show_default=False,
        ),
    ] = None,
    task_data: Annotated[
        Path | None,
        typer.Option(
            help="With --tasks: folder of local files, or a mapping file, to take the tasks from, instead of the Hub.",
            show_default=False,
        ),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="With --task-data: leave out tasks without a file.")
    ] = False,
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences",
            help="Score each sentence on its own, with its contexts where the model takes any (a CUE model always does).",
        ),
    ] = False,
    drop_contexts: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="With --sentences: withhold each context with this probability.",
            show_default=False,
        ),
    ] = None,
    rescore: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rank the candidates of each line of a JSON Lines file instead.",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="With --rescore: share of the model beside the candidates' own scores; not given: 1.",
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

    With --tasks: accuracies of lm-evaluation-harness, with standard errors.

    With --sentences: the loss of each sentence on its own, with its contexts.

    With --rescore: the candidates of each line by their log-probability.
    """
    given: dict[str, Any] = {
        "corpus": corpus,
        "context": context,
        "stride": stride,
        "limit_documents": limit_documents,
        "mode": mode,
        "contexts": contexts,
        "samples": samples,
        "worth": worth,
        "rope": rope,
        "rope_factor": rope_factor,
        "shots": shots,
        "task_data": task_data,
        "drop_contexts": drop_contexts,
        "weight": weight,
        "causality": causality or None,
        "spm": spm or None,
        "skip_missing": skip_missing or None,
    }
    chosen = _chosen(
        {
            "contextwise": contextwise or None,
            "infill": infill,
            "tasks": tasks,
            "sentences": sentences or None,
            "rescore": rescore,
        }
    )
    if chosen == PLAIN and corpus is not None and _takes_contexts(model):
        chosen = "sentences"
        alone = [name for name in ("stride", "context", "causality") if given[name] is not None]
        if alone:
            raise ConfigError(
                f"{model} is a CUE model, which is scored sentence by sentence; leave --{alone[0]} out"
            )
    _check_options(chosen, given)
    general: dict[str, Any] = {"batch_tokens": batch_tokens, "dtype": dtype, "device": device, "out": out}
    if chosen == "contextwise":
        from contextwise.cli.contextwise import contexts_of, evaluate_contextwise

        names = ("mode", "samples", "worth", "rope", "rope_factor", "context", "limit_documents")
        curve = {name: given[name] for name in names} | {"seed": seed or None}
        curve["contexts"] = None if contexts is None else contexts_of(contexts)
        evaluate_contextwise(model, corpus, split, as_json, curve, **general)
    elif infill is not None:
        from contextwise.cli.infilling import evaluate_holes

        options = general | {"context": context, "spm": spm, "max_new_tokens": max_new_tokens}
        evaluate_holes(model, infill, split, seed, limit_documents, as_json, **options)
    elif tasks is not None:
        from contextwise.cli.tasks import evaluate_tasks

        options = general | {"context": context}
        evaluate_tasks(model, tasks, shots, task_data, skip_missing, limit_documents, as_json, **options)
    elif chosen == "sentences":
        from contextwise.cli.sentences import evaluate_sentences

        evaluate_sentences(model, corpus, split, contexts, drop_contexts, limit_documents, as_json, **general)
    elif rescore is not None:
        from contextwise.cli.rescore import evaluate_rescore

        evaluate_rescore(model, rescore, as_json, weight=weight, **general)
    else:
        options = general | {"context": context, "stride": stride, "limit_documents": limit_documents}
        _evaluate_documents(model, corpus, split, causality, as_json, options)


def _chosen(modes: dict[str, Any]) -> str:
    """The one that was asked for.

    Raises:
        ConfigError: two were.
    """
    asked = [name for name, value in modes.items() if value is not None]
    if len(asked) > 1:
        # `--contextwise` first: its message names the other.
        raise ConfigError(f"--{asked[1]} is given together with --{asked[0]}; leave one of the two out")
    return asked[0] if asked else PLAIN


def _check_options(chosen: str, given: dict[str, Any]) -> None:
    """Refuse options that say nothing where they are given.

    Raises:
        ConfigError: naming the first of them.
    """
    for name, value in given.items():
        if value is None or chosen in TAKEN_BY[name]:
            continue
        option = f"--{name.replace('_', '-')}"
        if chosen != PLAIN:
            raise ConfigError(f"{option} is given together with --{chosen}; leave one of the two out")
        homes = " or ".join(f"--{home}" for home in TAKEN_BY[name])
        raise ConfigError(f"{option} is of use with {homes} only; give that too")


def _takes_contexts(model: str) -> bool:
    from contextwise.models.loading import load_config

    return load_config(model).model_type == "cue"


def _evaluate_documents(
    model: str, corpus: Path | None, split: str, causality: bool, as_json: bool, options: dict[str, Any]
) -> None:
    if corpus is None and not causality:
        raise ConfigError("there is nothing to evaluate on; give a prepared corpus with --corpus")
    found = None
    if causality:
        from contextwise.cli.causality import measured_causality, print_causality

        found = measured_causality(model, options["dtype"], options["device"])
        if not as_json or corpus is None or not found.causal:
            print_causality(found, as_json)
        if not found.causal:
            raise typer.Exit(1)
    if corpus is None:
        return
    from contextwise.cli.measuring import run_measure
    from contextwise.evaluation.measures.loss import Loss

    how = {name: options.pop(name) for name in ("context", "stride")} | {
        "limit": options.pop("limit_documents")
    }
    extra = None if found is None else {"causality": found.to_dict()}
    run_measure(model, Loss(**how), corpus, split, as_json, extra, **options)
