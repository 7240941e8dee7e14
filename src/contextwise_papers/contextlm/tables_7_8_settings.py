"""The hyperparameters of the published models beside those of this package's named sizes (ContextLM, Tables 7 and 8)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contextwise.base.estimates import count
from contextwise.models.sizes import SIZES
from contextwise_papers.claims import Claim, exact
from contextwise_papers.item import Item, ItemMeasure, Outcome
from contextwise_papers.tables import table_of


@dataclass(frozen=True)
class PublishedTraining:
    """Pretraining settings of a published model; the fields are named as in recipes.

    ``None`` means that the source does not give the value.
    """

    context: int
    """Tokens per window."""
    tokens_per_step: int
    tokens: int
    """Training tokens."""
    warmup_steps: int
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    weight_decay: float | None = None
    minimum_learning_rate: float | None = None
    """Final learning rate, as a share of the peak."""


# ContextLM, Section 7.1: windows, AdamW's betas, clipping and warm-up; Table 7: "0.5M", interpreted as 512 windows of
# 1024 tokens, and "9B". Neither the decay of the learning rate nor weight decay is given.
GPT2_TRAINING = PublishedTraining(context=1024, tokens_per_step=512 * 1024, tokens=9_000_000_000, warmup_steps=1000)

# ContextLM, Section 3.1: windows of 2048 tokens, "following the original Pythia ... training configuration"; Table 8: "2M" and
# "300B". The rest is from Pythia's configuration files (EleutherAI/pythia, models/160M/pythia-160m.yml and similar):
# 1024 windows a step, warm-up over 1% of 143,000 steps (299.9 billion tokens), a cosine to 10%, betas, clipping, weight decay.
PYTHIA_TRAINING = PublishedTraining(
    context=2048,
    tokens_per_step=1024 * 2048,
    tokens=300_000_000_000,
    warmup_steps=1430,
    weight_decay=0.1,
    minimum_learning_rate=0.1,
)

TRAINING = {"gpt2": GPT2_TRAINING, "gpt_neox": PYTHIA_TRAINING}
"""Of the published sizes of each family."""


class Hyperparameters(ItemMeasure, name="hyperparameters"):
    """Heads, width, rate, batch and tokens of named sizes; nothing is trained."""

    family: Literal["gpt2", "gpt_neox"]
    sizes: dict[str, str]

    def measure(self, item: Item, folder: Path) -> Outcome:
        rows, ours = [], {}
        for printed, name in self.sizes.items():
            size = SIZES[self.family][name]
            ours[printed] = [size.heads, size.width, size.learning_rate]
            ours[printed] += [TRAINING[self.family].tokens_per_step, TRAINING[self.family].tokens]
            *numbers, batch, tokens = ours[printed]
            rows.append([f"{printed} ({name})", *numbers, count(batch), count(tokens)])
        # The document rounds the batch, the fourth figure: 0.5M is 524,288.
        same = [
            abs(a / b - 1) < 0.06 if i == 3 else a == b
            for name in ours
            for i, (a, b) in enumerate(zip(ours[name], item.printed["rows"][name], strict=True))
        ]
        claim = Claim.of("the named sizes have the printed settings", exact(all(same)), f"{len(same)} figures")
        columns = ["model", "heads", "width", ("learning rate", ".1e"), "batch", "tokens"]
        return Outcome([table_of("Settings of the named sizes", columns, rows)], [claim], {"sizes": ours})
