"""``contextwise generate``: text behind a prompt, or between a prefix and a suffix."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextwise.base.errors import ConfigError
from contextwise.base.progress import console, say
from contextwise.cli.options import Model

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from contextwise.evaluation.generation import Sampling

BETWEEN = "-" * 8


def generate(
    model: Model,
    prompt: Annotated[
        str,
        typer.Argument(
            help="What the text begins with; nothing: the start of a document.", show_default=False
        ),
    ] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens behind the prompt.")] = 100,
    temperature: Annotated[float, typer.Option(help="Below 1 favours likely tokens.")] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the K likeliest tokens only.", show_default=False)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Draw from the likeliest tokens of this joint probability only.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws; the same seed gives the same text.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")] = False,
    num_samples: Annotated[int, typer.Option(min=1, help="How many texts.")] = 1,
    prefix: Annotated[
        str | None,
        typer.Option(
            help="Instead of a prompt: what stands before a hole that the model is to fill.",
            show_default=False,
        ),
    ] = None,
    suffix: Annotated[
        str | None, typer.Option(help="What stands behind the hole.", show_default=False)
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Print prefix, middle and suffix, not the middle alone.")
    ] = False,
    spm: Annotated[
        bool, typer.Option("--spm", help="Ask a decoder in the order suffix, prefix, middle, not PSM.")
    ] = False,
    contexts: Annotated[
        Path | None,
        typer.Option(
            "--contexts",
            metavar="FILE",
            help="What a CUE model is to know of the sentence: a JSON file with one object from context to value.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Continue a prompt with a model, or fill in between --prefix and --suffix.

    The text goes to standard output as it is made.

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
        _continue(model, prompt, max_new_tokens, sampling, num_samples, contexts)
        return
    if contexts is not None:
        raise ConfigError(
            "--contexts is given together with --prefix or --suffix, but contexts are for a prompt; leave one of the two out"
        )
    if prompt:
        raise ConfigError(
            "a prompt is given together with --prefix or --suffix; what stands before the hole is the prefix alone"
        )
    _fill(model, prefix or "", suffix or "", max_new_tokens, sampling, num_samples, whole, spm)


def _continue(
    model: str,
    prompt: str,
    max_new_tokens: int,
    sampling: "Sampling",
    num_samples: int,
    contexts: Path | None,
) -> None:
    from transformers import TextStreamer

    from contextwise.evaluation.generation import (
        allowed_new_tokens,
        encode_prompt,
        reads_sentences,
        sample_text,
    )
    from contextwise.models import load_model, load_tokenizer

    starts_sentence = reads_sentences(model)
    tokenizer, language_model = load_tokenizer(model), load_model(model)
    given = _contexts(language_model, model, contexts)
    prompt_tokens = encode_prompt(tokenizer, prompt, starts_sentence).shape[1]
    allowed = allowed_new_tokens(language_model, prompt_tokens, max_new_tokens)
    if allowed < max_new_tokens:
        console.print(
            f"note: the text ends after {allowed} tokens at most: the model has {prompt_tokens + allowed} "
            f"positions, and the prompt takes {prompt_tokens} of them",
            soft_wrap=True,
        )

    class Separated(TextStreamer):
        """Prints the tokens of one text after the other, with a line between."""

        finished = 0

        def end(self) -> None:
            super().end()
            self.finished += 1
            if self.finished < num_samples:
                print(BETWEEN)

    sample_text(
        language_model,
        tokenizer,
        prompt,
        max_new_tokens=allowed,
        sampling=sampling,
        samples=num_samples,
        streamer=Separated(tokenizer, skip_special_tokens=True),
        starts_sentence=starts_sentence,
        contexts=given,
    )


def _contexts(model: "PreTrainedModel", source: str, file: Path | None) -> "dict[str, torch.Tensor]":
    """What a CUE model is given beside the prompt; a note where it goes without."""
    if file is None:
        if model.config.model_type == "cue":
            say(f"note: {source} is a CUE model; it continues without contexts")
        return {}
    from contextwise.evaluation.measures.rescoring.files import contexts_for

    return contexts_for(model, source, file)


def _fill(
    model: str,
    prefix: str,
    suffix: str,
    max_new_tokens: int,
    sampling: "Sampling",
    num_samples: int,
    whole: bool,
    spm: bool,
) -> None:
    from contextwise.evaluation.kernel import Subject
    from contextwise.evaluation.measures.infill.filling import Infiller, filling_objective
    from contextwise.models import load_generating_model, load_tokenizer

    subject = Subject(model)
    infiller = Infiller(
        load_generating_model(model),
        load_tokenizer(model),
        spm=spm,
        objective=filling_objective(subject),
        max_new_tokens=max_new_tokens,
        context=subject.run_context,
    )
    if infiller.new_tokens < max_new_tokens:
        say(f"note: the middle ends after {infiller.new_tokens} tokens at most, for the model's positions")
    filled = infiller.prompt(prefix, suffix)
    if note := infiller.note(filled):
        say(note)
    for number, middle in enumerate(infiller.texts(filled, sampling, num_samples)):
        if number:
            print(BETWEEN)
        print(f"{prefix}{middle}{suffix}" if whole else middle)
