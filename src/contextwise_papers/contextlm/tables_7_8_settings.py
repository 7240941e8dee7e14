"""The hyperparameters of the published models beside those of this package's named sizes (ContextLM, Tables 7 and 8)."""

from pathlib import Path
from typing import Literal

from contextwise.base.estimates import count
from contextwise.models.sizes import SIZES
from contextwise_papers.claims import Claim, exact
from contextwise_papers.item import Item, ItemMeasure, Outcome
from contextwise_papers.tables import table_of


class Hyperparameters(ItemMeasure, name="hyperparameters"):
    """Heads, width, rate, batch and tokens of named sizes; nothing is trained."""

    family: Literal["gpt2", "gpt_neox"]
    sizes: dict[str, str]

    def measure(self, item: Item, folder: Path) -> Outcome:
        rows, ours = [], {}
        for printed, name in self.sizes.items():
            size = SIZES[self.family][name]
            assert size.training is not None
            ours[printed] = [size.heads, size.width, size.learning_rate]
            ours[printed] += [size.training.tokens_per_step, size.training.tokens]
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
