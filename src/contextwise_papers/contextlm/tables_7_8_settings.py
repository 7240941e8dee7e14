"""The hyperparameters of the published models beside those of this package's named sizes (ContextLM, Tables 7 and 8)."""

from pathlib import Path
from typing import Literal

from contextwise.models.sizes import SIZES
from contextwise.report import count
from contextwise_papers.claims import Claim, exact
from contextwise_papers.item import Item, ItemMeasure, Outcome
from contextwise_papers.tables import table_of

TRAINING = {"gpt2": (512 * 1024, 9_000_000_000), "gpt_neox": (1024 * 2048, 300_000_000_000)}
"""Tokens of a step and of the training of each family's published sizes. Table 7: "0.5M", interpreted as 512 windows of 1024
tokens, and "9B". Table 8: "2M", which is 1024 windows of 2048 in Pythia's configuration files, and "300B"."""


class Hyperparameters(ItemMeasure, name="hyperparameters"):
    """Heads, width, rate, batch and tokens of named sizes; nothing is trained."""

    family: Literal["gpt2", "gpt_neox"]
    sizes: dict[str, str]

    def measure(self, item: Item, folder: Path) -> Outcome:
        rows, ours = [], {}
        for printed, name in self.sizes.items():
            size = SIZES[self.family][name]
            ours[printed] = [size.heads, size.width, size.learning_rate, *TRAINING[self.family]]
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
