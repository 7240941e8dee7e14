"""``contextwise generate``."""

from typing import Annotated

import typer

from contextwise.base.progress import console


def generate(
    model: Annotated[
        str,
        typer.Argument(help="A run, a Hugging Face model folder, or a name on the Hub.", show_default=False),
    ],
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
) -> None:
    """Continue a prompt with a model; the text goes to standard output as it is made."""
    from transformers import TextStreamer

    from contextwise.evaluation.generation import Sampling, allowed_new_tokens, encode_prompt, sample_text
    from contextwise.models import load_model, load_tokenizer

    sampling = Sampling(temperature, top_k, top_p, seed, greedy)
    tokenizer, language_model = load_tokenizer(model), load_model(model)
    prompt_tokens = encode_prompt(tokenizer, prompt).shape[1]
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
                print("-" * 8)

    sample_text(
        language_model,
        tokenizer,
        prompt,
        max_new_tokens=allowed,
        sampling=sampling,
        samples=num_samples,
        streamer=Separated(tokenizer, skip_special_tokens=True),
    )
