"""The verbs ``contextwise model embed`` and ``fill``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from contextwise.cli.common import AsJson, Device, Dtype, Model, refuse_absent, show_json
from contextwise.cli.use import (
    BETWEEN,
    Greedy,
    MaxNewTokens,
    NumSamples,
    SavedDtype,
    Seed,
    Temperature,
    TextsAsJson,
    TopK,
    TopP,
)
from contextwise.report import progress_bar, say
from contextwise.settings import ConfigError, DataError

Vectors = Annotated[Path, Option(help="The NumPy file (.npy) to write.")]


def embed(
    model: Model,
    file: Annotated[
        Path, Argument(help="One text a line; or JSON Lines (.jsonl, .ndjson, .json) with the field text; .gz too.")
    ],
    out: Vectors,
    pooling: Annotated[
        Literal["cls", "mean", "last"] | None,
        Option(
            help="The state at [CLS], the mean over all tokens, or the last token's.",
            show_default="last for a decoder, mean for others",
        ),
    ] = None,
    normalize: Annotated[bool, Option("--normalize", help="Scale each vector to length 1.")] = False,
    batch_size: Annotated[int, Option(min=1, help="Texts of one forward pass.")] = 32,
    max_tokens: Annotated[
        int | None, Option(help="Cut longer texts to so many tokens.", show_default="what the model allows")
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Turn each text of a file into a vector; row i of the NumPy file is the vector of line i.

    Vectors are float32. An interrupted run leaves no file.
    """
    refuse_absent(model)
    if out.suffix != ".npy":
        raise ConfigError(f"--out is {out}, but a NumPy file is written; give a name that ends in .npy")
    texts = _read_texts(file)  # before torch is imported: a bad file is refused at once
    import numpy as np

    from contextwise.measures import Subject
    from contextwise_papers.objectives.embedding import Embedder, load_text_model, normalized, write_vectors

    subject = Subject(model, dtype=dtype, device=device)
    tokenizer = subject.tokenizer  # before the weights: a folder without one is refused at once
    loaded = load_text_model(model, subject.dtype, subject.device)
    embedder = Embedder(loaded, tokenizer, pooling=pooling, batch_size=batch_size, max_tokens=max_tokens)
    blocks = []
    with progress_bar("embed", len(texts), "texts") as advance:
        for block in embedder.blocks(texts):
            blocks.append(block)
            advance(len(block))
    vectors = np.concatenate(blocks)
    write_vectors(out, normalized(vectors) if normalize else vectors)
    if cut := sum(embedder.was_cut):
        were = "was" if cut == 1 else "were"
        say(f"note: {cut:,} of {len(texts):,} texts {were} longer than {embedder.max_tokens} tokens, and cut there")
    pooled = {"cls": "[CLS]", "mean": "mean", "last": "last token"}[embedder.pooling]
    rows, width = vectors.shape
    say(f"{'1 vector' if rows == 1 else f'{rows:,} vectors'} of {width} numbers ({pooled}) in {out}")
    if as_json:
        show_json({"path": out, "vectors": rows, "width": width})


def _read_texts(path: Path) -> list[str]:
    """Text i is that of line i; DataError if the file cannot be read, is empty, or a line has no text."""
    from contextwise.data import readable
    from contextwise.data.input_files import JSON_LINES, has_half_a_pair, parse_json, unpacked

    is_json, texts = path.name.lower().removesuffix(".gz").endswith(JSON_LINES), []
    what = "an object with a text in its field text" if is_json else "a text"
    with readable(path), path.open("rb") as raw, unpacked(raw, path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                if is_json:
                    record = parse_json(line)
                    text = (
                        record.get("text") if isinstance(record, dict) and not has_half_a_pair(record, line) else None
                    )
                else:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except ValueError as error:
                wrong = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
                raise DataError(f"{path}:{number}: the line {wrong}; fix the line, or take it out") from None
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{path}:{number}: the line holds no text; every line must be {what}, so take it out")
            texts.append(text)
    if not texts:
        raise DataError(f"{path} is empty; give a file with one text a line")
    return texts


def fill(
    model: Model,
    prefix: Annotated[str | None, Option(help="The text before the hole.")] = None,
    suffix: Annotated[str | None, Option(help="The text after the hole.")] = None,
    spm: Annotated[
        bool, Option("--spm", help="Prompt a decoder in the order suffix, prefix, middle, not PSM.")
    ] = False,
    max_new_tokens: MaxNewTokens = 100,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    greedy: Greedy = False,
    num_samples: NumSamples = 1,
    dtype: SavedDtype = "auto",
    as_json: TextsAsJson = False,
) -> None:
    """Fill the hole between --prefix and --suffix; one of them may be left out.

    The model must have been trained to: a decoder with the objective
    infilling, an encoder-decoder with spans or ul2.
    """
    refuse_absent(model)
    if prefix is None and suffix is None:
        raise ConfigError("there is no hole to fill; give --prefix, --suffix or both")
    from contextwise.measures import Sampling, Subject
    from contextwise.models import load_tokenizer
    from contextwise.models.loading import load_generating_model
    from contextwise_papers.objectives.infill.filling import Infiller, filling_objective

    sampling = Sampling(temperature, top_k, top_p, seed, greedy)
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
    prompt = infiller.prompt(prefix or "", suffix or "")
    if note := infiller.note(prompt):
        say(note)
    texts = infiller.texts(prompt, sampling, num_samples)
    if as_json:
        show_json({"prefix": prefix, "suffix": suffix, "texts": list(texts)})
        return
    for number, text in enumerate(texts):
        if number:
            print(BETWEEN)
        print(text)
