"""The measuring run behind ``contextwise entropy``, and its files.

Legend of shapes: N targets, K kept features, D channels.
"""

import time
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.torch import save

from contextwise.base.errors import CheckpointError, ConfigError, Interrupted
from contextwise.base.intervals import ratios
from contextwise.base.progress import interruption, progress_bar, say
from contextwise.data import Corpus
from contextwise.evaluation.kernel import Subject, Work
from contextwise.evaluation.measures.entropy.state import ContextState
from contextwise.evaluation.scoring.truncated import Features, Targets, choose_targets, truncated_passes

LEAST_PER_CHANNEL = 0.25
SAVE_SECONDS = 60.0
Contexts = dict[int, ContextState]


def measure_entropy(
    subject: Subject,
    corpus: Corpus,
    work: Work,
    contexts: list[int],
    *,
    samples: int,
    layer: Features,
    centred: bool,
    density_samples: int,
    seed: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary and the files of a measurement; the arguments are the settings of :class:`.Entropy`.

    Raises:
        ConfigError: there are too few samples for the features' width.
        DataError: no document is long enough.
        CheckpointError: the model hands out no features, or features that are not finite or do not vary.
        Interrupted: the process was asked to stop; what is done is kept.
    """
    targets = choose_targets(corpus, contexts[-1], samples, seed)
    kept = min(density_samples, len(targets))
    rows = np.sort(np.random.default_rng([seed, 1]).choice(len(targets), size=kept, replace=False))
    states = _measure(subject, corpus, targets, contexts, work, rows, layer, centred)
    width, longest = states[contexts[0]].kept.shape[1], states[contexts[-1]]
    summary = {
        "samples": len(targets),
        "documents": len(np.unique(targets.document)),
        "width": width,
        "kept": kept,
        "losses": {str(length): _mean(states[length].nats, targets) for length in contexts},
        "differences": {
            str(length): _mean(states[length].nats - longest.nats, targets) for length in contexts[:-1]
        },
        "notes": _notes(len(targets), samples, width),
    }
    return summary, entropy_files(targets, states)


def entropy_files(targets: Targets, states: Contexts) -> dict[str, Any]:
    """The tables of losses and spectra, and the kept features."""
    features = {str(length): state.kept.contiguous() for length, state in states.items()}
    return {
        "losses": _losses(targets, states),
        "spectra": _spectra(states),
        "features.safetensors": save(features),
    }


def _measure(
    subject: Subject,
    corpus: Corpus,
    targets: Targets,
    contexts: list[int],
    work: Work,
    kept_rows: np.ndarray,
    layer: Features,
    centred: bool,
) -> Contexts:
    """Go through all contexts, saving what is done from time to time."""
    model = subject.model
    all_states = {context: _load(work, context, model.device) for context in contexts}
    done = {context: state.done for context, state in all_states.items() if state is not None}
    if sum(done.values()):
        say(f"resuming: {sum(done.values()):,} of {len(targets) * len(contexts):,} predictions are done")
    last_save = time.monotonic()
    passes = truncated_passes(
        model,
        corpus,
        targets,
        contexts,
        batch_tokens=subject.batch_tokens,
        features=layer,
        done=done,
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
                    current.finish(centred)
                    _check_variation(current, layer)
                stop = interruption.requested
                if stop or current.finished or time.monotonic() - last_save > SAVE_SECONDS:
                    _save(work, current)
                    last_save = time.monotonic()
                if stop:
                    raise Interrupted(
                        f"stopped at a context of {batch.context} tokens, {batch.stop:,} targets in"
                    )
                advance(batch.stop - batch.start, note=f"context {batch.context:,}")
        finally:
            passes.close()
    return {context: state for context, state in all_states.items() if state is not None}


def _save(work: Work, state: ContextState) -> None:
    work.save(f"context-{state.context}", state.tensors())


def _load(work: Work, context: int, device: Any) -> ContextState | None:
    """What was done of a context; None if that is nothing, or its file is damaged."""
    tensors = work.load(f"context-{context}", torch=True)
    try:
        return None if tensors is None else ContextState.from_tensors(context, tensors, device)
    except KeyError:
        return None


def _check_samples(samples: int, width: int) -> None:
    least = int(np.ceil(LEAST_PER_CHANNEL * width))
    if samples < least:
        raise ConfigError(
            f"{samples:,} samples are too few for features of {width:,} channels: even features that vary alike in all "
            f"directions would then show eigenvalues of which the largest is nine times the smallest, and "
            "three of four are zero; "
            f"set samples to {least:,} or more, better {width * 5:,}"
        )


def _check_variation(state: ContextState, layer: Features) -> None:
    assert state.eigenvalues is not None
    if not state.eigenvalues[0] > 1e-12 * state.scale:
        raise CheckpointError(
            f"the features (layer {layer}) do not vary from sample to sample at a context of {state.context:,} tokens, so they "
            "have no spectrum; choose another layer, or check the model"
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


def _losses(targets: Targets, states: Contexts) -> pa.Table:
    return pa.concat_tables(
        pa.table(
            {
                "context": pa.array(np.full(len(targets), context, np.int32)),
                "document": pa.array(targets.document),
                "position": pa.array(targets.position),
                "nats": pa.array(state.nats),
            }
        )
        for context, state in sorted(states.items())
    )


def _spectra(states: Contexts) -> pa.Table:
    return pa.concat_tables(
        pa.table(
            {
                "context": pa.array(np.full(len(values), context, np.int32)),
                "index": pa.array(np.arange(1, len(values) + 1, dtype=np.int32)),
                "eigenvalue": pa.array(values),
            }
        )
        for context, values in ((c, state.eigenvalues) for c, state in sorted(states.items()))
        if values is not None
    )
