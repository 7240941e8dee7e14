"""``contextwise judge``: a judge rates or compares answers."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from contextwise.base.errors import ConfigError, Interrupted
from contextwise.base.progress import say


def judge(
    answers: Annotated[
        list[Path],
        typer.Argument(
            metavar="ANSWERS...",
            help="Files of answers, one a model, as `contextwise answers`, FastChat or alpaca_eval write them.",
            show_default=False,
        ),
    ],
    endpoint: Annotated[
        str, typer.Option(help="The judge's base URL, such as http://localhost:8000/v1.", show_default=False)
    ],
    judge_model: Annotated[str, typer.Option(help="The judge's name there.", show_default=False)],
    questions: Annotated[
        Path | None, typer.Option(help="MT-Bench's questions, for its answers.", show_default=False)
    ] = None,
    references: Annotated[
        Path | None,
        typer.Option(help="MT-Bench's reference answers, for math, coding, reasoning.", show_default=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Another model's answers: compare with them, in both orders, instead of rating.",
            show_default=False,
        ),
    ] = None,
    length_controlled: Annotated[
        bool,
        typer.Option(
            "--length-controlled", help="AlpacaEval's win rate at equal lengths, by its own package."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write.", show_default="beside the first answers"),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the endpoint's key.", show_default="OPENAI_API_KEY"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The first so many questions only.", show_default=False)
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once.")] = 4,
    timeout: Annotated[float, typer.Option(help="Seconds for one attempt.")] = 120.0,
    retries: Annotated[
        int, typer.Option(min=0, help="Further attempts after a timeout, 429 or 5xx; the waits grow.")
    ] = 5,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Of each request, such as max_tokens=500; NAME=null leaves one out.",
            show_default="temperature=0, max_tokens=2048",
        ),
    ] = None,
    price_in: Annotated[
        float | None,
        typer.Option(min=0, help="Of a million prompt tokens, for the estimate.", show_default=False),
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(min=0, help="Of a million answer tokens.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cost, and make no request.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Let a judge behind an OpenAI-compatible endpoint grade or compare answers.

    MT-Bench answers are rated from 1 to 10 by category; with --against they
    are compared. AlpacaEval outputs are compared with --against a reference.

    A stopped judging resumes.
    """
    from contextwise.evaluation.measures.judging.judge import Endpoint, judge_answers, read_key
    from contextwise.evaluation.measures.judging.requests import Match

    match = Match.read(answers, against, questions, references, limit)
    judge_endpoint = Endpoint(
        endpoint, judge_model, read_key(key_file), timeout, retries, _parameters(parameters or [])
    )
    label = re.sub(r"[^\w.-]+", "-", Path(judge_model).name) or "judge"
    folder = out or answers[0].parent / f"judged-by-{label}"
    summary = judge_answers(
        match,
        judge_endpoint,
        folder,
        concurrency=concurrency,
        price_in=price_in,
        price_out=price_out,
        dry_run=dry_run,
        length_controlled=length_controlled,
    )
    if summary is None:
        return
    _print(summary, as_json)
    say(f"written to {folder}/")
    if summary["missing"]:
        raise Interrupted(
            f"{summary['missing']:,} of {summary['missing'] + summary['judgments']:,} judgments are missing: "
            f"{summary['why_missing']}; run the same command again to make the missing requests"
        )


def _parameters(settings: list[str]) -> dict[str, Any]:
    from contextwise.base.config import with_overrides

    values = with_overrides({"temperature": 0, "max_tokens": 2048}, settings)
    for name in ("model", "messages", "stream", "n"):
        if name in values:
            raise ConfigError(f"--set {name}=… cannot be changed; leave it out")
    return {name: value for name, value in values.items() if value is not None}


def _print(summary: dict[str, Any], as_json: bool) -> None:
    from rich.console import Console

    from contextwise.evaluation.measures.judging.results import judging_tables

    if as_json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        Console(highlight=False).print(judging_tables(summary))
