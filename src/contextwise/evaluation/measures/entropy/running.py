"""The measuring run behind ``contextwise entropy``: losses and spectra of one model at several visible contexts.

The same targets are predicted from the nearest l tokens, for each context l (:mod:`evaluation.scoring.truncated`). What
they are predicted from, a feature for each target, goes into a running covariance in 64-bit numbers; its eigenvalues, the
losses and a bounded sample of features are what is kept (intrinsic entropy, Section 2.2.2). Everything derived from them is
worked out from the files (:mod:`contextwise.analysis`).

Legend of shapes: N targets, K kept features, D channels.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from contextwise.base.environment import describe_environment
from contextwise.base.errors import CheckpointError, ConfigError, Interrupted
from contextwise.base.estimates import CONFIDENCE
from contextwise.base.intervals import RESAMPLES, ratios
from contextwise.base.progress import progress_bar, say
from contextwise.data import Corpus
from contextwise.evaluation.measures.entropy.files import (
    KIND,
    Contexts,
    Measurement,
    check_destination,
    content_key,
    finished_measurement,
    write_measurement,
)
from contextwise.evaluation.measures.entropy.state import ContextState, StateFolder
from contextwise.evaluation.opening import (
    chosen_device,
    chosen_dtype,
    default_destination,
    is_run,
    label,
    tell_of_contexts,
)
from contextwise.evaluation.scoring.truncated import LAST, Features, Targets, choose_targets, truncated_passes
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS, vocabulary_size
from contextwise.models import load_model
from contextwise.models.tokenizers import check_tokenizer, corpus_tokenizer_hash

SAMPLES, KEPT = 10_000, 2_000
LEAST_SAMPLES, LEAST_PER_CHANNEL = 50, 0.25
SAVE_SECONDS = 60.0


def measure_entropy(
    source: str | Path,
    corpus: Corpus,
    contexts: Sequence[int],
    *,
    samples: int = SAMPLES,
    layer: Features = LAST,
    centred: bool = True,
    kept: int = KEPT,
    seed: int = 0,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Measurement:
    """Measure losses and spectra, and write them to ``RUN/evaluation/CORPUS-SPLIT-entropy``.

    A run that was stopped goes on where it was when the same is asked for again; a finished one is not made again.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        corpus: the documents (one split of a corpus).
        contexts: visible tokens, each a measurement; the targets have the longest of them before them.
        samples: how many targets.
        layer: which features: ``last``, what the vocabulary head reads, or the number of a hidden state.
        centred: whether eigenvalues are of the scatter about the mean, or about the origin.
        kept: features kept on disk for each context, of targets drawn by the seed.
        dtype, device, batch_tokens: as for :func:`contextwise.evaluation.evaluate_model`.
        out: where to write, instead.
        should_stop: asked before each batch.

    Raises:
        ConfigError: an option is out of range, there are too few samples for the features' width, or ``out`` holds something
            else.
        DataError: no document is long enough, or the corpus does not fit the model.
        CheckpointError: there is no such model; it hands out no features, or features that are not finite or do not vary.
        Interrupted: ``should_stop`` said so; what was done is kept.
    """
    started, source = time.monotonic(), str(source)
    contexts = checked_contexts(contexts)
    if kept < 2:
        raise ConfigError(f"--density-samples is {kept}; keep at least 2 features")
    targets = choose_targets(corpus, contexts[-1], samples, seed)
    _check_floor(len(targets), corpus)
    in_run = out is None and is_run(source)
    out = out or default_destination(source, f"{label(corpus)}-{KIND}")
    check_destination(out, None if in_run else source, corpus.fingerprint)
    corpus.verify()
    place = chosen_device(device)
    model = load_model(source, dtype=chosen_dtype(dtype, place), device=place)
    check_tokenizer(source, vocabulary_size(model), corpus)
    tell_of_contexts(source, model)
    settings = {
        "corpus": corpus.fingerprint,
        "longest": contexts[-1],
        "samples": samples,
        "seed": seed,
        "layer": layer,
        "centred": centred,
        "kept": kept,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    key = content_key(source, model, settings)
    if (finished := finished_measurement(out, key, contexts)) is not None:
        say(f"measured already: {out}; remove that folder to measure again")
        return finished
    states = StateFolder(out, key)
    found = _measure(model, corpus, targets, contexts, states, settings, batch_tokens, should_stop)
    width = found[contexts[0]].kept.shape[1]
    summary = {
        "kind": KIND,
        "key": key,
        "label": label(corpus),
        "model": source,
        "name": Path(source).name,
        "run": is_run(source),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": place.type,
        **{name: settings[name] for name in ("dtype", "layer", "centred", "seed")},
        "corpus": {
            "path": str(corpus.path),
            "fingerprint": corpus.fingerprint,
            "split": corpus.split,
            "tokenizer_hash": corpus_tokenizer_hash(corpus.path),
        },
        "contexts": contexts,
        "samples": len(targets),
        "samples_asked": samples,
        "documents": len(np.unique(targets.document)),
        "width": width,
        "kept": min(kept, len(targets)),
        "losses": {str(length): _mean(found[length].nats, targets) for length in contexts},
        "differences": {
            str(length): _mean(found[length].nats - found[contexts[-1]].nats, targets)
            for length in contexts[:-1]
        },
        "notes": _notes(len(targets), samples, width),
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    written = write_measurement(out, summary, targets, found)
    states.remove()
    return written


def checked_contexts(contexts: Sequence[int]) -> list[int]:
    """The contexts, the shortest first.

    Raises:
        ConfigError: there is none, one is not positive, or one is given twice.
    """
    if not contexts or min(contexts) < 1 or len(set(contexts)) < len(contexts):
        given = ", ".join(map(str, contexts)) or "empty"
        raise ConfigError(
            f"--contexts is {given}; give different lengths of at least 1 token, such as 16,32,64"
        )
    return sorted(contexts)


def _measure(
    model: PreTrainedModel,
    corpus: Corpus,
    targets: Targets,
    contexts: list[int],
    states: StateFolder,
    settings: dict[str, Any],
    batch_tokens: int | None,
    should_stop: Callable[[], bool] | None,
) -> Contexts:
    """Go through all contexts, saving what is done from time to time."""
    chosen = np.random.default_rng([settings["seed"], 1]).choice(
        len(targets), size=min(settings["kept"], len(targets)), replace=False
    )
    kept_rows = np.sort(chosen)
    all_states = {context: states.load(context, model.device) for context in contexts}
    done = {context: state.done for context, state in all_states.items() if state is not None}
    if sum(done.values()):
        say(f"going on: {sum(done.values()):,} of {len(targets) * len(contexts):,} predictions are done")
    last_save, current = time.monotonic(), None
    passes = truncated_passes(
        model,
        corpus,
        targets,
        contexts,
        batch_tokens=DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens,
        features=settings["layer"],
        done=done,
        should_stop=should_stop,
    )
    with progress_bar("measure", len(targets) * len(contexts), "predictions") as advance:
        advance(sum(done.values()))
        try:
            for batch in passes:
                assert batch.features is not None
                current = all_states[batch.context]
                if current is None:
                    width = batch.features.shape[1]
                    _check_samples(len(targets), width)
                    current = all_states[batch.context] = ContextState(batch.context, width, model.device)
                current.add(batch, kept_rows)
                if current.done == len(targets):
                    current.finish(settings["centred"])
                    _check_variation(current, settings["layer"])
                if current.finished or time.monotonic() - last_save > SAVE_SECONDS:
                    states.save(current)
                    last_save = time.monotonic()
                advance(batch.stop - batch.start, note=f"context {batch.context:,}")
        except Interrupted as stopped:
            if current is not None and not current.finished:
                states.save(current)
            raise Interrupted(f"{stopped}; run the same command again to go on from there") from None
        except CheckpointError:
            states.remove()  # nothing goes on from a damaged model
            raise
        finally:
            passes.close()
    return {context: state for context, state in all_states.items() if state is not None}


def _check_floor(samples: int, corpus: Corpus) -> None:
    if samples < LEAST_SAMPLES:
        raise ConfigError(
            f"{samples} samples are too few for a spectrum: each eigenvalue would be uncertain by more than a fifth of itself "
            f"(the square root of 2 / samples); give --samples {LEAST_SAMPLES} or more, and a corpus ({corpus.path}) with as "
            "many tokens that have the longest context before them"
        )


def _check_samples(samples: int, width: int) -> None:
    least = int(np.ceil(LEAST_PER_CHANNEL * width))
    if samples < least:
        raise ConfigError(
            f"{samples:,} samples are too few for features of {width:,} channels: even features that vary alike in all "
            f"directions would then show eigenvalues of which the largest is nine times the smallest, and "
            "three of four are zero; "
            f"give --samples {least:,} or more, better {width * 5:,}"
        )


def _check_variation(state: ContextState, layer: Features) -> None:
    assert state.eigenvalues is not None
    if not state.eigenvalues[0] > 1e-12 * state.scale:
        raise CheckpointError(
            f"the features (layer {layer}) do not vary from sample to sample at a context of {state.context:,} tokens, so they "
            "have no spectrum; choose another --layer, or check the model"
        )


def _mean(nats: np.ndarray, targets: Targets) -> dict[str, float | None]:
    """Mean over targets, in nats, with its 95% interval over documents."""
    _, place = np.unique(targets.document, return_inverse=True)
    sums, counts = np.bincount(place, weights=nats), np.bincount(place)
    return ratios(sums, {"loss": counts})["loss"].to_dict()


def _notes(samples: int, asked: int, width: int) -> list[str]:
    notes = []
    if samples < asked:
        notes.append(
            f"There are only {samples:,} tokens with the longest context before them, not {asked:,}: all of them were taken."
        )
    if samples <= width:
        notes.append(
            f"{samples:,} samples are no more than the {width:,} channels: at most {samples - 1:,} eigenvalues can differ "
            "from zero, the large ones come out too large and the small ones too small."
        )
    elif samples < 5 * width:
        notes.append(
            f"{samples:,} samples are few for {width:,} channels: small eigenvalues come out too small, large ones too large. "
            f"Five times as many samples as channels ({5 * width:,}) or more say more."
        )
    return notes
