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

    from contextwise.evaluation.generation import Sampling

PANEL = "Use"

BETWEEN = "-" * 8


class GenerateJson(TypedDict):
    """New texts: continuations of ``prompt``, or middles between ``prefix`` and ``suffix``, with both if --whole is given."""

    prompt: str | None
    prefix: str | None
    suffix: str | None
    texts: list[str]


class EmbedJson(TypedDict):
    """The vectors of ``embed``: float32, (vectors, width).

    ``cut`` and ``split``: texts that were longer than ``max_tokens`` tokens, and were truncated, or split into chunks that
    share ``overlap`` tokens. ``whitening``: the file of the whitening that was written or applied. ``pooling`` is ``e_cue``
    for contexts, which have no layer.
    """

    path: Path
    vectors: int
    width: int
    pooling: str
    layer: int | None
    layers: int | None
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
    max_new_tokens: Annotated[int, Option(min=1, help="Maximum number of new tokens.")] = 100,
    temperature: Annotated[float, Option(help="Below 1 favours likely tokens.")] = 0.8,
    top_k: Annotated[int | None, Option(help="Draw from the K likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, Option(help="Draw from the likeliest tokens of this joint probability only.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Of the draws; the same seed gives the same text.")] = 0,
    greedy: Annotated[bool, Option("--greedy", help="Always take the likeliest token.")] = False,
    num_samples: Annotated[int, Option("--num-samples", "-n", min=1, help="How many texts.")] = 1,
    prefix: Annotated[
        str | None, Option(help="Instead of a prompt: the text before a hole that the model fills.")
    ] = None,
    suffix: Annotated[str | None, Option(help="The text after the hole.")] = None,
    whole: Annotated[bool, Option("--whole", help="Print prefix, middle and suffix, not the middle alone.")] = False,
    spm: Annotated[
        bool, Option("--spm", help="Prompt a decoder in the order suffix, prefix, middle, not PSM.")
    ] = False,
    contexts: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Contexts of the sentence for a CUE model: a JSON file with one object from context to value.",
        ),
    ] = None,
    dtype: Annotated[str, Option(help="Of the weights: float32, bfloat16, float16; auto: as saved.")] = "auto",
    as_json: Annotated[
        bool,
        Option("--json", help="Print the new texts as JSON, all at the end."),
        Prints("contextwise.cli.use:GenerateJson"),
    ] = False,
) -> None:
    """Continue a prompt with a model, or fill in between --prefix and --suffix.

    The text is printed as it is generated.

    With --prefix, --suffix or both, fill the hole between them; the model
    must have been trained to: a decoder with the objective infilling, an
    encoder-decoder with spans or ul2.

    A sentence model, a CUE model too, writes one sentence.
    """
    from contextwise.evaluation.generation import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed, greedy)
    if prefix is None and suffix is None:
        if whole or spm:
            raise ConfigError(
                f"{'--whole' if whole else '--spm'} is of use with a hole to fill only; give --prefix and --suffix"
            )
        _continue(model, prompt, max_new_tokens, sampling, num_samples, contexts, dtype, as_json)
        return
    if contexts is not None:
        raise ConfigError(
            "--contexts is given together with --prefix or --suffix, but contexts are for a prompt; leave one of the two out"
        )
    if prompt:
        raise ConfigError(
            "a prompt is given together with --prefix or --suffix; the text before the hole is the prefix alone"
        )
    from contextwise.evaluation.kernel import Subject
    from contextwise.models import load_generating_model, load_tokenizer
    from contextwise_evals.infill.filling import Infiller, filling_objective

    subject = Subject(model, dtype=dtype)
    infiller = Infiller(
        load_generating_model(model, None if dtype == "auto" else subject.dtype),
        load_tokenizer(model),
        spm=spm,
        objective=filling_objective(subject),
        max_new_tokens=max_new_tokens,
        context=subject.run_context,
    )
    if infiller.new_tokens < max_new_tokens:
        say(f"note: the middle ends after {infiller.new_tokens} tokens at most, for the model's positions")
    filled = infiller.prompt(prefix or "", suffix or "")
    if note := infiller.note(filled):
        say(note)
    before, after = (prefix or "", suffix or "") if whole else ("", "")
    texts = (f"{before}{middle}{after}" for middle in infiller.texts(filled, sampling, num_samples))
    if as_json:
        show_json(GenerateJson(prompt=None, prefix=prefix, suffix=suffix, texts=list(texts)))
        return
    for number, text in enumerate(texts):
        if number:
            print(BETWEEN)
        print(text)


def _continue(
    source: str,
    prompt: str,
    max_new_tokens: int,
    sampling: "Sampling",
    samples: int,
    contexts: Path | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Print continuations of a prompt, token by token, or all as JSON."""
    from transformers import TextStreamer

    from contextwise.evaluation import generation
    from contextwise.evaluation.kernel import Subject
    from contextwise.models import load_model, load_tokenizer

    weights = None if dtype == "auto" else Subject(source, dtype=dtype).dtype
    starts_sentence = generation.reads_sentences(source)
    tokenizer, model = load_tokenizer(source), load_model(source, weights)
    given = {}
    if contexts is not None:
        from contextwise_papers.cue.rescoring.contexts import contexts_for

        given = contexts_for(model, source, contexts)
    elif model.config.model_type == "cue":
        say(f"note: {source} is a CUE model; it continues without contexts")
    prompt_tokens = generation.encode_prompt(tokenizer, prompt, starts_sentence).shape[1]
    allowed = generation.allowed_new_tokens(model, prompt_tokens, max_new_tokens)
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
            if self.finished < samples:
                print(BETWEEN)

    texts = generation.sample_text(
        model,
        tokenizer,
        prompt,
        max_new_tokens=allowed,
        sampling=sampling,
        samples=samples,
        streamer=None if as_json else Separated(tokenizer, skip_special_tokens=True),
        starts_sentence=starts_sentence,
        contexts=given,
    )
    if as_json:
        show_json(GenerateJson(prompt=prompt, prefix=None, suffix=None, texts=texts))


def embed(
    model: Model,
    out: Annotated[Path, Option(help="The NumPy file (.npy) to write.")],
    file: Annotated[
        str | None,
        Argument(help="One text a line; or JSON Lines (.jsonl, .ndjson, .json); .gz too; -: standard input."),
    ] = None,
    contexts: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="In place of texts, the contexts of a CUE model: JSON Lines of objects from context to value; each becomes "
            "one vector, e_cue.",
        ),
    ] = None,
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
    if out.suffix != ".npy":
        raise ConfigError(f"--out is {out}, but a NumPy file is written; give a name that ends in .npy")
    options: dict[str, Any] = {"pooling": pooling, "layer": layer, "normalize": normalize or None}
    options |= {"batch_size": batch_size, "max_tokens": max_tokens, "overlap": overlap}
    further = {"truncate": truncate or None, "whiten": whiten or None, "components": components, "whitening": whitening}
    if contexts is not None:
        for name, value in {"FILE": file, "text_field": text_field, **options, **further}.items():
            if value is not None:
                option = name if name == "FILE" else f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} is given together with --contexts; leave one of the two out")
        from contextwise_papers.cue.rescoring.contexts import write_cue_vectors

        rows, width = write_cue_vectors(model, contexts, out, dtype=dtype, device=device)
        _say_written(rows, width, "e_cue of contexts", out)
        if as_json:
            sizes: Any = {"path": out, "vectors": rows, "width": width, "cut": 0, "split": 0, "pooling": "e_cue"}
            show_json(sizes | dict.fromkeys(("layer", "layers", "max_tokens", "overlap", "whitening")))
        return
    if file is None:
        raise ConfigError("there is nothing to embed; give a file of texts, or contexts with --contexts FILE")
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
    _say_written(rows, width, f"{pooled}, layer {embedder.layer.number} of {embedder.layer.last}{whitened}", out)
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


def _say_written(rows: int, width: int, what: str, out: Path) -> None:
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
