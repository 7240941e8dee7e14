"""Claims that one trained model is better than another, and what an interval says of them."""

from pydantic import Field, model_validator

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.reproductions.item import Claim
from contextwise.reproductions.trained_models import TrainedModels


class Better(Settings):
    """A claim: one model's figure is higher than another's."""

    text: str
    better: str = Field(description="a model")
    than: str = Field(description="another")


class ComparedModels(TrainedModels):
    """Models, and which is said to be better than which."""

    better: list[Better] = Field(default_factory=list)

    @model_validator(mode="after")
    def _compared_known(self) -> "ComparedModels":
        for name in [name for one in self.better for name in (one.better, one.than)]:
            if name not in self.models:
                raise ConfigError(f"better names {name!r}, which is none of {', '.join(self.models)}")
        return self

    @property
    def with_seeds(self) -> str:
        """How many runs stand behind a figure, in words."""
        return f"mean of {len(self.seeds)} seeds" if len(self.seeds) > 1 else "one seed"


def points(found: Estimate) -> str:
    """A difference of shares, in percentage points: ``+1.20 [-0.35, +2.75] points``."""
    ends = (
        ""
        if found.low is None or found.high is None
        else f" [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    )
    return f"{100 * found.value:+.2f}{ends} points"


def difference_claim(one: Better, found: Estimate, what: str, remark: str = "") -> Claim:
    """A claim on a difference of shares; ``remark`` follows the evidence."""
    evidence = f"{one.better} minus {one.than}, {what}: {points(found)}"
    return Claim(one.text, found.above(0.0), f"{evidence}{'; ' if remark else ''}{remark}")
