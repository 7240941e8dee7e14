"""Verbs to start with: ``contextwise demo``, ``prepare``, ``corpus`` and ``recipes``."""

import math
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text
from typer import Argument, Option

from contextwise.base import plugins
from contextwise.base.errors import ConfigError, did_you_mean
from contextwise.base.estimates import counted, listed
from contextwise.base.lazy import object_named
from contextwise.base.progress import console, say
from contextwise.base.recipes import Shipped, recipe_kinds, shipped_recipes
from contextwise.base.tables import Column, Table
from contextwise.cli.common import AsJson, Split, show, show_json, show_line

if TYPE_CHECKING:
    from contextwise.data import Corpus
    from contextwise.data.document_lengths import DocumentLengths
    from contextwise.experiments.demo import DemoScale

PANEL = "Start"

SIZES = (
    "Recipes whose names end with -paper have their source's size, for GPUs. The others are small: most take minutes on two "
    "CPU cores, and --dry-run says how long."
)
START = (
    "Start with `contextwise train gpt2-nano --corpus CORPUS`. `contextwise recipes contextlm` says what each of a document's "
    "recipes is for, and `contextwise recipes gpt2-nano` prints one, to be changed."
)
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SHORTEST_ROW = 64
FILES = {name: kind.settings for name, kind in recipe_kinds().items() if kind.settings}
"""Kind of file -> the class of its settings."""


def demo(
    quick: Annotated[bool, Option("--quick", help="A smaller corpus and fewer steps: minutes.")] = False,
    out: Annotated[Path | None, Option(help="Folder for corpus and trial.", show_default="runs/demo")] = None,
    seed: Annotated[int, Option(min=0, max=999_990, help="The first seed.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print the trial's result as JSON.")] = False,
) -> None:
    """Measure how much context a known model uses; then decide on real text whether rotary positions help a small GPT-2.

    The curve takes a minute, if SmolLM2 is installed. Then a trial in its
    smallest form: paired seeds of both models, at equal FLOPs, until the
    difference is decided. The text is the source of Python's own library. Run the same command again to resume.
    """
    from contextwise.experiments.demo import FULL, QUICK

    started = time.monotonic()
    # A folder for each scale and seed: what has finished in it is used again.
    out = out or Path("runs/demo" + "-quick" * quick + f"-seed{seed}" * bool(seed))
    run_demo(QUICK if quick else FULL, out, seed, shlex.join(["contextwise", *sys.argv[1:]]), as_json)
    say(f"{(time.monotonic() - started) / 60:.1f} minutes; what was made: {out}/")


def run_demo(scale: "DemoScale", out: Path, seed: int, command: str, as_json: bool = False) -> None:
    """Prepare the corpus, measure the curve and run the trial, or resume; ``command`` makes the page again."""
    from contextwise.cli.decide import show_trial
    from contextwise.cli.measures import show_result
    from contextwise.experiments.demo import QUESTION, demo_corpus, demo_curve, demo_trial
    from contextwise.experiments.trial import Trial
    from contextwise.reports.trial import run_with_page

    say_step = partial(console.print, style="bold", markup=False)
    say_step("1/3 the corpus: the source of Python's standard library")
    demo_corpus(scale, out / "corpus")
    settings = demo_trial(scale, out, seed)
    if not as_json:
        say_step("2/3 a curve: how much context does SmolLM2-135M-Instruct use on such text?")
        curve = demo_curve(scale, out)
        if isinstance(curve, str):
            show_line(f"left out: {curve}")
        else:
            show_result(curve, as_json=False)
            show_line("the same on your text: contextwise curve smollm2 --corpus FILE")
    say_step(f"3/3 a trial: {QUESTION}")
    show_trial(run_with_page(Trial(settings), command), as_json, QUESTION)


def prepare(
    sources: Annotated[
        list[str],
        Argument(
            metavar="SOURCE",
            help="JSON Lines (.jsonl, .jsonl.gz), Parquet, CSV, TSV or text files, folders or quoted patterns of them, "
            "a Hugging Face dataset (folder, or Hub name, name:config or name:config:split), stdlib, or a source that a "
            f"package offers by its prefix ({', '.join(plugins.points('sources'))}). "
            "train=SOURCE test=SOURCE names the split of each, in place of shares.",
        ),
    ],
    tokenizer: Annotated[
        str,
        Option(
            help="A tokenizer's folder or Hub name (NAME@REVISION), a GGUF file, smollm2, train:N (learn a byte-level BPE of N "
            "tokens), or bytes."
        ),
    ],
    out: Annotated[Path, Option(help="Folder to write the corpus to.")],
    text_field: Annotated[str, Option(help="Field or column that holds the text.")] = "text",
    limit: Annotated[int | None, Option(help="Maximum number of documents (of each named split).")] = None,
    validation: Annotated[
        float | None,
        Option(help="Share of the documents held out for validation.", show_default="0.05, or for 30 documents"),
    ] = None,
    test: Annotated[float | None, Option(help="Share of the documents held out for testing.", show_default="0")] = None,
    end_of_text: Annotated[str | None, Option(help="Token that ends a document, if the tokenizer names none.")] = None,
    skip_bad: Annotated[bool, Option("--skip-bad", help="Leave out bad records, and count them.")] = False,
    deduplicate: Annotated[
        float | None,
        Option(
            metavar="SIMILARITY",
            help="Leave out near-copies of earlier documents: from this Jaccard similarity of their 5-grams on, such as 0.8.",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the corpus at --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tokenize text into a corpus: documents, split by their content, with their metadata."""
    options = {name: value for name, value in locals().items() if name != "as_json"}
    from contextwise.data import Corpus, prepare_corpus
    from contextwise.data.corpus.corpus import is_corpus
    from contextwise.data.near_copies import MOST_COMPARED, split_overlap

    started, existed = time.perf_counter(), is_corpus(out) and not overwrite
    corpus = prepare_corpus(**options)
    seconds = max(1e-9, time.perf_counter() - started)
    manifest = corpus.manifest
    compared = manifest["splits"].get("train", {}).get("tokens", math.inf) <= MOST_COMPARED
    held_out = [name for name in manifest["splits"] if name != "train" and compared]
    overlaps = [split_overlap(Corpus.open(out, "train"), Corpus.open(out, name)) for name in held_out]
    if as_json:
        kept = set(manifest) & {"tokenizer", "dtype", "splits", "skipped", "deduplicated", "columns_as_json"}
        about = {"path": corpus.path, "fingerprint": corpus.fingerprint, "overlaps": overlaps, "seconds": seconds}
        show_json(about | {name: manifest[name] for name in sorted(kept)})
    else:
        _show_prepared(corpus, None if existed else seconds)
    for found in overlaps:
        if found.copied:
            left_out = "--deduplicate 0.8 leaves copies of whole texts out; " if deduplicate is None else ""
            shown = f"contextwise corpus {shlex.quote(str(out))} --overlap {found.name} shows them"
            say(f"note: {found.sentence}: losses on them are too low. A trial leaves them out; {left_out}{shown}")
    if not as_json:
        if manifest["columns_as_json"]:
            show(
                f"lists, objects or values of several types, kept as JSON text: {', '.join(manifest['columns_as_json'])}"
            )
        show_line(f"corpus: {corpus.path}")


def _show_prepared(corpus: "Corpus", seconds: float | None) -> None:
    """Print the sizes of a corpus, and what was left out; ``seconds`` is None if it had been prepared before."""
    manifest = corpus.manifest
    rows = [
        [name, *(split[key] for key in ("documents", "tokens", "bytes")), split["bytes"] / split["tokens"]]
        for name, split in manifest["splits"].items()
    ]
    counts = [Column(name, "integer") for name in ("documents", "tokens", "bytes")]
    show(Table("", ["split", *counts, Column("bytes/token", "estimate", ".2f")], rows))
    megabytes = sum(split["bytes"] for split in manifest["splits"].values()) / 1e6
    show(
        f"vocabulary {corpus.vocab_size:,} ({manifest['tokenizer']['name']}), {manifest['dtype']}; "
        f"{megabytes:.1f} MB"
        + (
            " (prepared before, from the same texts with the same options)"
            if seconds is None
            else f" in {seconds:.1f} s: {megabytes / seconds:.1f} MB/s"
        )
    )
    skipped = manifest["skipped"]
    if skipped["bad"] or skipped["empty"]:
        show(f"left out: bad records {skipped['bad']:,}, empty texts {skipped['empty']:,}")
    if near := manifest.get("deduplicated"):
        documents = near["left_out"] + sum(split["documents"] for split in manifest["splits"].values())
        found = f"{near['left_out']:,} of {documents:,} documents ({near['left_out'] / documents:.1%})"
        show(f"left out: {found} nearly copy an earlier one")
        for each in near["examples"][:1]:
            show(f"  {each['left_out']!r}, of {each['kept']!r}: {each['similarity']:.2f}")


def corpus(
    path: Annotated[Path, Argument(metavar="CORPUS", help="A prepared corpus, a Zarr array, or a flat .bin file.")],
    split: Split = "train",
    context: Annotated[
        list[int] | None,
        Option(help="A training context, in tokens, to judge; may be repeated. Not given: each power of two."),
    ] = None,
    overlap: Annotated[
        list[str] | None,
        Option(metavar="SPLIT", help="Report how much of another split is in this one, by n-grams; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report how long the documents of a corpus are, and how much training context they can reward.

    A training context is longer than the corpus can reward if less than 10% of
    the tokens have half of it or more before them in their own document, or if
    no document is as long.
    """
    from contextwise.data import Corpus, document_lengths

    for length in context or []:
        if length < 2:
            raise ConfigError(f"--context is {length}; give a training context in tokens, at least 2, such as 1024")
    if overlap and context:
        raise ConfigError("--overlap compares splits and reads no --context; leave one of them out")
    documents = Corpus.open(path, split=split)
    if overlap:
        _show_overlaps(documents, overlap, as_json)
        return
    lengths = document_lengths.measure_lengths(documents)
    if as_json:
        contexts = context or [2**power for power in range(1, lengths.longest.bit_length() + 1)]
        show_json(document_lengths.report(documents, lengths, contexts))
        return
    counts = f"{counted(lengths.documents, 'document')}, {lengths.tokens:,} tokens"
    if lengths.documents == 1:
        counts = f"one document of {lengths.tokens:,} tokens"
    show(f"{documents.path}, split {documents.split}: {counts}.")
    if lengths.documents > 1:
        quantiles = ", ".join(f"{length:,} ({share})" for share, length in lengths.quantiles().items())
        show(f"Quantiles of the documents' lengths: {quantiles}.")
    show(_lengths_table(lengths))
    if note := document_lengths.boundary_note(documents):
        show(f"Note: {note}")
    if note := documents.lost_note:
        show(f"Note: {note}")
    show(*_rewards(lengths, context))


def _show_overlaps(documents: "Corpus", splits: list[str], as_json: bool) -> None:
    """Print how much of each split is in the documents, with the texts of which most is there."""
    from contextwise.data import Corpus
    from contextwise.data.near_copies import split_overlap

    found = [split_overlap(documents, Corpus.open(documents.path, name)) for name in splits]
    if as_json:
        show_json(found)
        return
    for each in found:
        show(f"{documents.path}, split {documents.split}: {each.sentence}.")
        rows = [[f"{text.share:.1%}", f"{text.number:,}", text.beginning] for text in each.examples]
        if rows:
            show(Table("", [Column("shared", align="right"), Column("text", "integer"), Column("begins")], rows))


def _lengths_table(lengths: "DocumentLengths") -> Table:
    """A row for each power of two, without those below 64 that hold no document."""
    from contextwise.data.document_lengths import token_count

    columns = ["documents\nof l to 2l", "tokens\nin them", "their\nshare"]
    columns += ["documents\nunder l", "tokens with l\nor more before"]
    rows = [
        [
            token_count(row.shortest),
            f"{row.documents:,}",
            f"{row.tokens:,}",
            *(f"{share:.1%}" for share in (row.tokens / lengths.tokens, row.shorter, row.preceded)),
        ]
        for row in lengths.bins()
        if row.shortest >= SHORTEST_ROW or row.shorter or row.documents
    ]
    return Table("", [Column("length l", align="right"), *columns], rows)


def _rewards(lengths: "DocumentLengths", contexts: list[int] | None) -> list[str]:
    """Which training contexts the documents reward; without ``contexts``, which of the powers of two."""
    from contextwise.data.document_lengths import in_tokens

    longest = lengths.longest_rewarded()
    too_short = "Warning: the documents are too short to reward any training context; take longer documents."
    judged = contexts or ([longest, 2 * longest] if longest else [])
    if not judged:
        return [too_short]
    sentences, all_enough = [], True
    for reward in map(lengths.reward, judged):
        all_enough = all_enough and reward.enough
        name = in_tokens(reward.context)
        if reward.enough:
            what = f"A training context of {name} is" if contexts else f"Training contexts up to {name} are"
            sentences.append(
                f"{what} rewarded: {reward.preceded:.1%} of the tokens have {in_tokens(reward.half)} or more (half of it) "
                "before them in their document."
            )
        else:
            what = f"a training context of {name} is" if contexts else f"{name} and more are"
            sentences.append(f"Warning: {what} longer than this corpus can reward: {reward.shortfall}.")
    if contexts and not all_enough:
        advice = "" if longest is None else f"Train with {in_tokens(longest)} or less, or take longer documents."
        sentences.append(advice or too_short)
    return sentences


def recipes(
    name: Annotated[
        str | None, Argument(help="A recipe, or a document for all of its recipes.", show_default="all")
    ] = None,
    schema: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help=f"Print the JSON Schema of a file ({listed([*FILES], 'or')}), with which editors complete and check it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with the package, say what those of a document are for, or print one to be changed.

    The verb of a recipe takes its name: contextwise train contextlm-nano
    """
    if schema is not None:
        if name is not None:
            raise ConfigError("--schema prints a schema alone; leave the recipe out")
        if schema not in FILES:
            others = f"it may be {listed([*FILES], 'or')}"
            raise ConfigError(f"--schema is {schema!r}, which has none; {did_you_mean(schema, [*FILES], others)}")
        show_json(schema_of(schema))
        return
    found = shipped_recipes(name or "")
    if not found:
        known = [key for each in shipped_recipes() for key in (each.path.stem, each.name)]
        raise ConfigError(
            f"there is no recipe {name}; {did_you_mean(str(name), known, 'contextwise recipes lists all')}"
        )
    if as_json:
        show_json(found)
    elif len(found) == 1:
        print(found[0].path.read_text(encoding="utf-8"), end="")
    else:
        by_verb: dict[str, list[Shipped]] = {}
        for each in found:
            by_verb.setdefault(each.verb, []).append(each)
        for verb, recipes in sorted(by_verb.items(), key=lambda item: len(item[1])):  # the longest list last
            show(Text(f"\ncontextwise {verb} NAME", "bold"), *(_described(recipes) if name else [_names(recipes)]))
        if name is None:
            show(f"\n{START}")
        if any(each.name.endswith("-paper") for each in found):
            show("\n" + SIZES)


def _described(recipes: list["Shipped"]) -> Iterator[RenderableType]:
    """The name of each recipe, and below it what it is for."""
    for each in recipes:
        yield from (f"  {each.name}", Padding(each.about, (0, 0, 0, 4), expand=False))


def _names(recipes: list["Shipped"]) -> RenderableType:
    """A row for each document with the names of its recipes."""
    names: dict[str, list[str]] = {}
    for document, _, recipe in (each.name.partition("/") for each in recipes):
        names.setdefault(document, []).append(recipe)
    rows = Grid.grid(padding=(0, 1))
    for document, named in names.items():
        rows.add_row(f"  {document}/", ", ".join(named))
    return rows


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file (a key of :data:`FILES`)."""
    values = object_named(FILES[kind]).model_json_schema()
    values["required"] = [name for name in values.get("required", []) if name != "name"]  # by default the file's
    return {"$schema": DRAFT, **values}
