"""Verbs of use: ``contextwise generate``, ``embed``, ``serve`` and ``export``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from typer import Argument, Option

from contextwise.base.errors import ConfigError
from contextwise.base.progress import progress_bar, say
from contextwise.cli.common import AsJson, Device, Dtype, Model, Prints, show_json

if TYPE_CHECKING:
    import numpy as np


PANEL = "Use"

BETWEEN = "-" * 8


MaxNewTokens = Annotated[int, Option(min=1, help="Maximum number of new tokens.")]
Temperature = Annotated[float, Option(help="Below 1 favours likely tokens.")]
TopK = Annotated[int | None, Option(help="Draw from the K likeliest tokens only.")]
TopP = Annotated[float | None, Option(help="Draw from the likeliest tokens of this joint probability only.")]
Seed = Annotated[int, Option(min=0, help="Of the draws; the same seed gives the same text.")]
Greedy = Annotated[bool, Option("--greedy", help="Always take the likeliest token.")]
NumSamples = Annotated[int, Option("--num-samples", "-n", min=1, help="How many texts.")]
SavedDtype = Annotated[str, Option(help="Of the weights: float32, bfloat16, float16; auto: as saved.")]
Vectors = Annotated[Path, Option(help="The NumPy file (.npy) to write.")]
TextsAsJson = Annotated[bool, Option("--json", help="Print the new texts as JSON, all at the end.")]


class GenerateJson(TypedDict):
    """Continuations of a prompt."""

    prompt: str
    texts: list[str]


class EmbedJson(TypedDict):
    """The vectors of ``embed``: float32, (vectors, width).

    ``cut`` and ``split``: texts that were longer than ``max_tokens`` tokens, and were truncated, or split into chunks that
    share ``overlap`` tokens. ``whitening``: the file of the whitening that was written or applied.
    """

    path: Path
    vectors: int
    width: int
    pooling: str
    layer: int
    layers: int
    cut: int
    split: int
    max_tokens: int | None
    overlap: int | None
    whitening: Path | None


class ExportJson(TypedDict):
    """A folder that ``export`` wrote, and the names of its files."""

    path: Path
    standalone: bool
    files: list[str]


def generate(
    model: Model,
    prompt: Annotated[
        str, Argument(help="What the text begins with; nothing: the start of a document.", show_default=False)
    ] = "",
    max_new_tokens: MaxNewTokens = 100,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    greedy: Greedy = False,
    num_samples: NumSamples = 1,
    contexts: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="For a model that takes contexts: a JSON file with one object from context to value."
        ),
    ] = None,
    dtype: SavedDtype = "auto",
    as_json: Annotated[TextsAsJson, Prints("contextwise.cli.use:GenerateJson")] = False,
) -> None:
    """Continue a prompt with a model.

    The text is printed as it is generated. A sentence model writes one
    sentence.
    """
    from transformers import TextStreamer

    from contextwise.evaluation import generation
    from contextwise.evaluation.kernel import Subject
    from contextwise.models import load_model, load_tokenizer

    sampling = generation.Sampling(temperature, top_k, top_p, seed, greedy)
    subject = Subject(model, dtype=dtype)
    starts_sentence = generation.reads_sentences(model)
    tokenizer, loaded = load_tokenizer(model), load_model(model, None if dtype == "auto" else subject.dtype)
    given = {}
    if contexts is not None:
        given = subject.spec.generation_inputs(loaded, model, contexts)
    elif subject.spec.takes_contexts:
        say(f"note: {model} takes contexts; it continues without any")
    prompt_tokens = generation.encode_prompt(tokenizer, prompt, starts_sentence).shape[1]
    allowed = generation.allowed_new_tokens(loaded, prompt_tokens, max_new_tokens)
    if allowed < max_new_tokens:
        say(
            f"note: the text ends after {allowed} tokens at most: the model has {prompt_tokens + allowed} positions, and the "
            f"prompt takes {prompt_tokens} of them"
        )

    class Separated(TextStreamer):
        """Prints the tokens of one text after the other, with a line between."""

        finished = 0

        def end(self) -> None:
            super().end()
            self.finished += 1
            if self.finished < num_samples:
                print(BETWEEN)

    texts = generation.sample_text(
        loaded,
        tokenizer,
        prompt,
        max_new_tokens=allowed,
        sampling=sampling,
        samples=num_samples,
        streamer=None if as_json else Separated(tokenizer, skip_special_tokens=True),
        starts_sentence=starts_sentence,
        contexts=given,
    )
    if as_json:
        show_json(GenerateJson(prompt=prompt, texts=texts))


def embed(
    model: Model,
    file: Annotated[
        str, Argument(help="One text a line; or JSON Lines (.jsonl, .ndjson, .json); .gz too; -: standard input.")
    ],
    out: Vectors,
    text_field: Annotated[
        str | None,
        Option(help="Of JSON Lines, the field with the text; given, FILE is read as JSON Lines.", show_default="text"),
    ] = None,
    pooling: Annotated[
        Literal["cls", "mean", "last"] | None,
        Option(
            help="The state at [CLS], the mean over all tokens, or the last token's.",
            show_default="that of contrastive training, else last for a decoder and mean for others",
        ),
    ] = None,
    layer: Annotated[
        int | None, Option(help="Whose output is pooled; 0: the embeddings.", show_default="the last")
    ] = None,
    normalize: Annotated[bool, Option("--normalize", help="Scale each vector to length 1.")] = False,
    batch_size: Annotated[int | None, Option(min=1, help="Texts of one forward pass.", show_default="32")] = None,
    max_tokens: Annotated[
        int | None,
        Option(help="Longer texts are split into chunks of so many tokens.", show_default="what the model allows"),
    ] = None,
    overlap: Annotated[
        int | None,
        Option(help="Tokens that two neighbouring chunks of a text share.", show_default="a quarter of a chunk"),
    ] = None,
    truncate: Annotated[bool, Option("--truncate", help="Cut longer texts instead of splitting them.")] = False,
    whiten: Annotated[
        bool, Option("--whiten", help="Whiten the vectors, and write the whitening beside them, to OUT.whitening.")
    ] = False,
    components: Annotated[
        int | None, Option(help="With --whiten, numbers of a whitened vector.", show_default="all")
    ] = None,
    whitening: Annotated[
        Path | None,
        Option(metavar="FILE", help="Apply the whitening of an earlier --whiten, as for queries of its documents."),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: Annotated[AsJson, Prints("contextwise.cli.use:EmbedJson")] = False,
) -> None:
    """Turn each text of a file into a vector; row i of the NumPy file is the vector of line i.

    Vectors are float32. An interrupted run leaves no file.
    """
    check_vectors(out)
    options: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalize": normalize or None}
    options |= {"batch_size": batch_size, "max_tokens": max_tokens, "overlap": overlap}
    for first, second in ((truncate and overlap is not None, "--overlap"), (whiten and whitening, "--whitening")):
        if first:
            other = "--truncate" if second == "--overlap" else "--whiten"
            raise ConfigError(f"{second} is given together with {other}; leave one of the two out")
    if components is not None and not whiten:
        raise ConfigError("--components is given without --whiten; add --whiten, or leave it out")
    from contextwise.data.input_files import open_lines

    with open_lines(file, text_field) as lines:
        count = lines.count()  # before torch is imported: a bad file is refused at once
        from contextwise.base.files import write_vectors
        from contextwise.evaluation.kernel import Subject
        from contextwise.models.embedding import Embedder, load_text_model
        from contextwise.models.whitening import Whitening, write_whitened

        subject = Subject(model, dtype=dtype, device=device)
        tokenizer = subject.tokenizer  # before the weights: a folder without one is refused at once
        given = {name: value for name, value in options.items() if value is not None}
        applied = None if whitening is None else Whitening.load(whitening)
        given |= {"split": not truncate, "whitening": applied, "normalize": normalize and not whiten}
        embedder = Embedder(load_text_model(model, subject.dtype, subject.device), tokenizer, **given)
        about = {"model": subject.digest, "pooling": embedder.pooling, "layer": str(embedder.layer.number)}
        if applied is not None:
            applied.check(about)

        def blocks() -> Iterator["np.ndarray"]:
            with progress_bar("embed", count, "texts") as advance:
                for block in embedder.blocks(lines):
                    yield block
                    advance(len(block))

        if whiten:
            whitening = out.with_name(f"{out.name}.whitening")
            rows, width = write_whitened(out, whitening, blocks(), count, components, about, normalize)
        else:
            rows, width = write_vectors(out, blocks(), count)
    if embedder.cut:
        were = "was" if embedder.cut == 1 else "were"
        what = "cut there"
        if embedder.overlap is not None:
            what = f"split into chunks that share {embedder.overlap}"
        say(f"note: {embedder.cut:,} of {rows:,} texts {were} longer than {embedder.max_tokens} tokens, and {what}")
    pooled = {"cls": "[CLS]", "mean": "mean", "last": "last token"}[embedder.pooling]
    whitened = "" if whitening is None else ", whitened"
    say_written(rows, width, f"{pooled}, layer {embedder.layer.number} of {embedder.layer.last}{whitened}", out)
    if as_json:
        values = EmbedJson(
            path=out,
            vectors=rows,
            width=width,
            pooling=embedder.pooling,
            layer=embedder.layer.number,
            layers=embedder.layer.last,
            cut=embedder.cut if truncate else 0,
            split=0 if truncate else embedder.cut,
            max_tokens=embedder.max_tokens,
            overlap=embedder.overlap,
            whitening=whitening,
        )
        show_json(values)


def check_vectors(out: Path) -> None:
    """Raise a ConfigError unless the name is that of a NumPy file."""
    if out.suffix != ".npy":
        raise ConfigError(f"--out is {out}, but a NumPy file is written; give a name that ends in .npy")


def say_written(rows: int, width: int, what: str, out: Path) -> None:
    """Report the vectors that were written."""
    say(f"{'1 vector' if rows == 1 else f'{rows:,} vectors'} of {width} numbers ({what}) in {out}")


def serve(
    model: Model,
    host: Annotated[str, Option(help="Address to listen on.")] = "localhost",
    port: Annotated[int, Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    device: Annotated[str, Option(help="cpu, cuda, …; auto: a GPU if there is one.")] = "auto",
) -> None:
    """Answer OpenAI-compatible requests: transformers' own server with any model here.

    POST /v1/completions continues a prompt; /v1/chat/completions needs a
    tokenizer with a chat template. Requests name the model as it is printed.
    """
    from transformers.utils.import_utils import is_serve_available

    from contextwise.models import load_tokenizer, model_folder
    from contextwise.models.loading import load_config, model_class

    if not is_serve_available():
        raise ConfigError("the server's packages are not installed; pip install 'contextwise[serve]'")
    from contextwise.cli.server import run_server

    folder = model_folder(model)
    model_class(load_config(folder))
    if load_tokenizer(folder).chat_template is None:
        say("note: its tokenizer has no chat template, so that only /v1/completions answers")
    say(f"serving the model {folder} at http://{host}:{port}/v1; Ctrl-C ends it")
    run_server(folder, host, port, device)


def export(
    model: Annotated[str, Argument(help="A finished run, or a model's folder.")],
    out: Annotated[Path, Option(help="The folder to write.")],
    standalone: Annotated[
        bool,
        Option(
            "--standalone",
            help="Add the code of the model, so that it opens with trust_remote_code=True "
            "where Contextwise is not installed.",
        ),
    ] = False,
    as_json: Annotated[AsJson, Prints("contextwise.cli.use:ExportJson")] = False,
) -> None:
    """Copy a model into a new folder with a model card, ready to be shared."""
    from contextwise.base.runs import RunFolder
    from contextwise.models.export import export_model_folder
    from contextwise.training.export import model_card, part_card

    run = RunFolder(model)
    card = model_card(run, standalone) if run.finished else part_card(model)
    export_model_folder(model, out, standalone, card)
    if as_json:
        show_json(ExportJson(path=out, standalone=standalone, files=sorted(file.name for file in out.iterdir())))
    else:
        say(f"{out}")
