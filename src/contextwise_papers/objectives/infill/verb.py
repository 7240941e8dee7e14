"""The verb ``contextwise model fill``."""

from typing import Annotated, TypedDict

from typer import Option

from contextwise.base.errors import ConfigError
from contextwise.base.progress import say
from contextwise.cli.common import Model, Prints, show_json
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


class FillJson(TypedDict):
    """Middles between ``prefix`` and ``suffix``, with both if --whole is given."""

    prefix: str | None
    suffix: str | None
    texts: list[str]


def fill(
    model: Model,
    prefix: Annotated[str | None, Option(help="The text before the hole.")] = None,
    suffix: Annotated[str | None, Option(help="The text after the hole.")] = None,
    whole: Annotated[bool, Option("--whole", help="Print prefix, middle and suffix, not the middle alone.")] = False,
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
    as_json: Annotated[TextsAsJson, Prints("contextwise_papers.objectives.infill.verb:FillJson")] = False,
) -> None:
    """Fill the hole between --prefix and --suffix; one of them may be left out.

    The model must have been trained to: a decoder with the objective
    infilling, an encoder-decoder with spans or ul2.
    """
    if prefix is None and suffix is None:
        raise ConfigError("there is no hole to fill; give --prefix, --suffix or both")
    from contextwise.evaluation.kernel import Subject
    from contextwise.evaluation.sampling import Sampling
    from contextwise.models import load_generating_model, load_tokenizer
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
    before, after = (prefix or "", suffix or "") if whole else ("", "")
    texts = (f"{before}{middle}{after}" for middle in infiller.texts(prompt, sampling, num_samples))
    if as_json:
        show_json(FillJson(prefix=prefix, suffix=suffix, texts=list(texts)))
        return
    for number, text in enumerate(texts):
        if number:
            print(BETWEEN)
        print(text)
