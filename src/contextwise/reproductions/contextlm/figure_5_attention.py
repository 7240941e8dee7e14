"""The attention that each token of one text receives from trained models (ContextLM, Section 4.3, Figure 5).

What a token receives is the mean over layers, heads and the positions that can see it
(:mod:`evaluation.attention`); a phrase or chunk receives the sum over its tokens. A claim is
decided by the t-interval of the difference over seeds, so one seed decides none.
"""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.errors import ConfigError
from contextwise.base.intervals import estimate_over_seeds
from contextwise.base.tables import Table
from contextwise.evaluation.attention import Reading, Received, read_with_models
from contextwise.reproductions.claims import Better, Claim, above
from contextwise.reproductions.item import Item, Outcome, Plot, registered
from contextwise.reproductions.trained_models import TrainedModels


@registered("attention_received")
class AttentionReceived(TrainedModels):
    """The models read one text; ``claims`` name the model that attends more to each phrase, according to the document."""

    text: str
    phrases: list[str] = Field(min_length=1, description="of the text")
    received: Received = "mean"

    @model_validator(mode="after")
    def _phrases_there(self) -> "AttentionReceived":
        for phrase in self.phrases:
            if not phrase or self.text.count(phrase) != 1:
                raise ConfigError(
                    f"the phrase {phrase!r} is {self.text.count(phrase) if phrase else 0} times in the text; give one that is "
                    "in it once"
                )
        if len(self.models) > 3:
            raise ConfigError(f"{len(self.models)} models are given; give one to three")
        return self

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        readings = [
            read_with_models([str(seeds[i].path) for seeds in runs.values()], self.text)
            for i in range(len(self.seeds))
        ]
        reading = readings[0]
        attention = {
            name: np.stack([one.models[m].received(self.received) for one in readings])
            for m, name in enumerate(runs)
        }
        claims = [
            self._claim(one, phrase, reading, attention) for phrase in self.phrases for one in self.claims
        ]
        figures: dict[str, Any] = {
            "pieces": reading.pieces,
            "has_start": reading.has_start,
            "attention": {name: values.tolist() for name, values in attention.items()},
            "phrases": {phrase: tokens_of(reading, self.text, phrase) for phrase in self.phrases},
            "chunk_size": reading.chunk_size,
        }
        return Outcome(
            [chunks_table(reading, attention, self.reference, self.with_seeds)],
            claims,
            figures,
            [run.path for seeds in runs.values() for run in seeds],
            drawn(reading, attention, self.reference),
        )

    def _claim(self, claim: Better, phrase: str, reading: Reading, attention: dict[str, np.ndarray]) -> Claim:
        positions = tokens_of(reading, self.text, phrase)
        better, than = (attention[name][:, positions].sum(axis=1) for name in (claim.better, claim.than))
        difference = estimate_over_seeds(better, than, paired=True)
        ratio = better.mean() / than.mean() - 1
        names = f"{claim.better} minus {claim.than} on {len(positions)} tokens"
        evidence = f"{names}: {difference:+.2g}, {ratio:+.1%}; {self.with_seeds}"
        return Claim.of(f"{claim.text}: {phrase!r}", above(difference), evidence)


def tokens_of(reading: Reading, text: str, phrase: str) -> list[int]:
    """Positions of the tokens that overlap a phrase; the first and the last may reach beyond it."""
    start = text.index(phrase)
    end, shown, positions = start + len(phrase), 0, []
    for position, piece in enumerate(reading.pieces):
        if position == 0 and reading.has_start:
            continue
        # White space before a word is part of its token, and of no phrase.
        low, shown = shown + len(piece) - len(piece.lstrip()), shown + len(piece)
        if low < end and start < shown:
            positions.append(position)
    return positions


def chunks_table(reading: Reading, attention: dict[str, np.ndarray], reference: str, seeds: str) -> Table:
    """Attention received by each chunk, and how much more than the reference's."""
    sums = {name: reading.chunk_sums(values).mean(axis=0) for name, values in attention.items()}
    others = [name for name in sums if name != reference]
    first = int(reading.has_start)
    shown = [*(f"{piece} " for piece in reading.pieces[:first]), *reading.pieces[first:]]
    rows = []
    for chunk in range(len(sums[reference])):
        text = "".join(piece for piece, of in zip(shown, reading.chunks, strict=True) if of == chunk)
        values = [f"{sum_of_chunk[chunk]:.4f}" for sum_of_chunk in sums.values()]
        changes = [f"{sums[name][chunk] / sums[reference][chunk] - 1:+.1%}" for name in others]
        rows.append([f"{chunk + 1}: {text.strip()}", *values, *changes])
    return Table(
        f"Attention received by each chunk of {reading.chunk_size} tokens; {seeds}",
        ["chunk", *sums, *(f"{name} to {reference}" for name in others)],
        rows,
    )


def drawn(reading: Reading, attention: dict[str, np.ndarray], reference: str) -> list[Plot]:
    """A line a model, by token, and the same over the reference's.

    The token before the text is left out, since it receives many times what others do.
    """
    means = {name: values.mean(axis=0) for name, values in attention.items()}
    shares = {name: values / means[reference] for name, values in means.items()}
    return [
        Plot("Attention received by each token", "token", "attention received", _by_token(reading, means)),
        Plot(
            f"Attention received by each token, over that from {reference}",
            "token",
            f"times that from {reference}",
            _by_token(reading, shares),
        ),
    ]


def _by_token(reading: Reading, values: dict[str, np.ndarray]) -> dict[str, list[dict[str, Any]]]:
    positions = range(int(reading.has_start), len(reading.ids))
    return {
        name: [{"x": i, "y": float(received[i]), "text": reading.pieces[i]} for i in positions]
        for name, received in values.items()
    }
