"""The demo: a trial of rotary against learned positions on the source of Python's own library, and a known model's curve."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contextwise.base.errors import CheckpointError
from contextwise.data import Corpus, prepare_corpus
from contextwise.experiments.trial.settings import TrialSettings, load_trial

if TYPE_CHECKING:
    from contextwise.evaluation.kernel import Result

QUESTION = "Does a small GPT-2 learn better with rotary positions than with learned ones, at equal FLOPs?"
ARMS = {"learned": [], "rotary": ["model.family=gpt2_rotary"]}
KNOWN = "smollm2"


@dataclass(frozen=True)
class DemoScale:
    """The sizes of a demo."""

    trial: tuple[str, ...]  # settings, as in ``contextwise trial --set``; the others are the defaults of trials
    documents: int | None = None  # modules of the standard library that make the corpus, the first by name; None: all
    held_out: float = 0.05
    vocabulary: int = 4096
    targets: int = 192  # of the known model's curve


# Each run takes 256 and 150 steps.
FULL = DemoScale(("tokens=262144", "seeds=6", "recipe.model.size=pico"))
QUICK = DemoScale(
    ("tokens=76800", "seeds=4", "recipe.model.size=pico", "recipe.training.tokens_per_step=512"),
    documents=160,
    held_out=0.1,
    targets=96,
)


def demo_corpus(scale: DemoScale, path: Path) -> Corpus:
    """The training split of the corpus at ``path``, which is prepared if it does not exist.

    Raises:
        DataError: there is another corpus.
    """
    tokenizer = f"train:{scale.vocabulary}"
    return prepare_corpus("stdlib", tokenizer, path, limit=scale.documents, validation=scale.held_out)


def demo_trial(scale: DemoScale, out: Path, seed: int) -> TrialSettings:
    """The demo's trial, in a folder of ``out``; both arms have the learning rates of the shared recipe."""
    values = {"name": "demo", "arms": ARMS, "corpus": str(out / "corpus"), "rates": "fixed", "first_seed": seed}
    return load_trial(None, values, list(scale.trial), out / "trial")


def demo_curve(scale: DemoScale, out: Path) -> "Result | str":
    """The curve of SmolLM2-135M-Instruct up to 256 visible tokens on the first modules; how to install it where it is not."""
    from contextwise.evaluation.kernel import measure
    from contextwise.evaluation.measures.curve import Curve
    from contextwise.models.folders import model_folder

    try:
        tokenizer = model_folder(KNOWN)
    except CheckpointError as error:
        return str(error)
    corpus = out / "corpus-smollm2"
    prepare_corpus("validation=stdlib", str(tokenizer), corpus, limit=60)
    settings = Curve(context=256, samples=scale.targets)
    return measure(KNOWN, settings, Corpus.open(corpus, split="validation"), out=out / "curve-smollm2")
