"""The demo: a corpus of the standard library, and a trial of ContextLM against GPT-2 without and with two more layers."""

from dataclasses import dataclass
from pathlib import Path

from contextwise.base.errors import ConfigError
from contextwise.data import Corpus, prepare_corpus
from contextwise.data.sources.stdlib import StandardLibrary
from contextwise.experiments.trial.settings import TrialSettings, load_trial

PROMPT = "def main("


@dataclass(frozen=True)
class DemoScale:
    """The sizes of a demo.

    Attributes:
        documents: modules of the standard library that make the corpus, the first by name; None: all.
        held_out: share of the documents that no model is trained on.
        trial: settings of the trial, as in ``contextwise trial --set``; the others are the defaults of trials.
        timed_tokens: tokens of a text whose generation is timed.
    """

    trial: tuple[str, ...]
    documents: int | None = None
    held_out: float = 0.05
    vocabulary: int = 4096
    timed_tokens: int = 128


# The fewest steps, those of the arm with the most FLOPs for a token, are 197 and 115.
FULL = DemoScale(("tokens=262144", "seeds=6", "recipe.model.size=pico"))
QUICK = DemoScale(
    ("tokens=76800", "seeds=4", "recipe.model.size=pico", "recipe.training.tokens_per_step=512"),
    documents=160,
    held_out=0.1,
    timed_tokens=64,
)


def demo_corpus(scale: DemoScale, path: Path) -> Corpus:
    """The training split of the corpus at ``path``, which is prepared if it does not exist.

    Raises:
        ConfigError: there is another corpus.
    """
    tokenizer = f"train:{scale.vocabulary}"
    if path.exists():
        corpus = Corpus.open(path, split="train")
    else:
        corpus = prepare_corpus("stdlib", tokenizer, path, limit=scale.documents, validation=scale.held_out, reuse=True)
    manifest = corpus.manifest
    sources = [StandardLibrary().description()]  # with the version of Python
    existing = (
        manifest["sources"],
        manifest["tokenizer"]["name"],
        manifest["limit"],
        manifest["split_shares"]["validation"],
    )
    if existing != (sources, tokenizer, scale.documents, scale.held_out):
        raise ConfigError(
            f"{path} holds another corpus than this; choose another folder with --out, or remove that one"
        )
    return corpus


def demo_trial(scale: DemoScale, out: Path, seed: int) -> TrialSettings:
    """The demo's trial, in a folder of ``out``; each arm has the learning rates of its recipe.

    ContextLM is the reference, so that it is compared both to the plain model and to the one with as many parameters.
    """
    values = {
        "name": "demo",
        "arms": ["gpt2", "pm", "contextlm"],
        "reference": "contextlm",
        "corpus": str(out / "corpus"),
        "rates": "fixed",
        "first_seed": seed,
    }
    return load_trial(None, values, list(scale.trial), out / "trial")
