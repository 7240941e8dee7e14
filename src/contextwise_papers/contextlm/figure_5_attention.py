"""The attention that each token of one text receives from trained models (ContextLM, Section 4.3, Figure 5).

What a token receives is the mean over layers, heads and the positions that can see it
(:mod:`contextwise_papers.contextlm.attention`); a phrase or chunk receives the sum over its tokens. A claim is
decided by the t-interval of the difference over seeds.
"""

from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.intervals import estimate_over_seeds
from contextwise.report import written
from contextwise.settings import ConfigError
from contextwise_papers.claims import Better, Claim, above
from contextwise_papers.contextlm.attention import MOST_MODELS, Reading, chunks_table, drawn, read_with_models
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import TrainedModels, paths_of


class AttentionReceived(TrainedModels, name="attention_received"):
    """The models read one text; ``claims`` name the model that attends more to each phrase, according to the document."""

    text: str
    phrases: list[str] = Field(min_length=1, description="of the text")

    @model_validator(mode="after")
    def _phrases_in_text(self) -> "AttentionReceived":
        for phrase in self.phrases:
            count = self.text.count(phrase) if phrase else 0
            if count != 1:
                raise ConfigError(f"the phrase {phrase!r} is {count} times in the text; give one that is in it once")
        if len(self.models) > MOST_MODELS:
            raise ConfigError(f"{len(self.models)} models are given; give one to {MOST_MODELS}")
        return self

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.trained(folder)
        readings = [
            read_with_models([str(run.path) for run in of_seed], self.text)
            for of_seed in zip(*runs.values(), strict=True)
        ]
        reading = readings[0]
        attention = {
            name: np.stack([list(of_seed.received.values())[m] for of_seed in readings]) for m, name in enumerate(runs)
        }
        phrases = {phrase: tokens_of(reading, self.text, phrase) for phrase in self.phrases}
        figures = {name: getattr(reading, name) for name in ("pieces", "has_start", "chunk_size")}
        figures |= {"attention": attention, "phrases": phrases}
        claims = [self._claim(claim, *where, attention) for where in phrases.items() for claim in self.claims]
        tables = [chunks_table(reading, attention, self.reference, self.with_seeds)]
        return Outcome(tables, claims, figures, paths_of(runs), drawn(reading, attention, self.reference))

    def _claim(self, claim: Better, phrase: str, positions: list[int], attention: dict[str, np.ndarray]) -> Claim:
        better, than = (attention[name][:, positions].sum(axis=1) for name in claim.names)
        difference = estimate_over_seeds(better, than, paired=True)
        ratio = better.mean() / than.mean() - 1
        evidence = f" on {len(positions)} tokens: {difference:+.2g}, {written(ratio, '+.1%')}; {self.with_seeds}"
        return claim.decided(above(difference), evidence, f": {phrase!r}").over_seeds(len(self.seeds))


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
