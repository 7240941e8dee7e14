"""Verbs of use: ``contextwise generate`` and ``export``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from contextwise.base.errors import ConfigError
from contextwise.base.files import check_new
from contextwise.base.progress import say
from contextwise.base.runs import RunFolder
from contextwise.cli.common import AsJson, Model, refuse_absent, show_json
from contextwise.evaluation.kernel import Subject

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
TextsAsJson = Annotated[bool, Option("--json", help="Print the new texts as JSON, all at the end.")]


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
    as_json: TextsAsJson = False,
) -> None:
    """Continue a prompt with a model.

    The text is printed as it is generated. A sentence model writes one
    sentence.
    """
    refuse_absent(model)
    from contextwise.evaluation.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed, greedy)
    from transformers import TextStreamer

    from contextwise.evaluation import generation
    from contextwise.models import load_model, load_tokenizer

    subject = Subject(model, dtype=dtype)
    starts_sentence = generation.reads_sentences(model)
    tokenizer, loaded = load_tokenizer(model), load_model(model, None if dtype == "auto" else subject.dtype)
    if not hasattr(loaded, "generate"):
        raise ConfigError(
            f"{model} is a {type(loaded).__name__}, which cannot generate; derive its class from transformers' GenerationMixin"
        )
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
        show_json({"prompt": prompt, "texts": texts})


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
    as_json: AsJson = False,
) -> None:
    """Copy a model into a new folder, with the model card of its run, ready to be shared."""
    refuse_absent(model)
    check_new(out)
    from contextwise.models.export import export_model_folder
    from contextwise.training.export import model_card

    run = RunFolder(model)
    card = model_card(run, standalone) if run.finished else None
    export_model_folder(model, out, standalone, card)
    if as_json:
        files = sorted(file.name for file in out.iterdir())
        show_json({"path": out, "standalone": standalone, "files": files})
    else:
        say(f"{out}")
