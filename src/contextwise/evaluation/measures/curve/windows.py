"""Which windows a running curve is measured on: whole ones inside documents, so that every position has the same documents."""

import numpy as np

from contextwise.base.errors import DataError
from contextwise.data.windows.last_tenth import last_tenth_length
from contextwise.evaluation.scoring.windows import Documents, Plan, plan_windows


def whole_windows(corpus: Documents, context: int, limit_documents: int | None = None) -> Plan:
    """Windows of ``context`` targets, one behind the other, in each document that is long enough; the rest is left out.

    Position t of a window (from 1) predicts the token behind t visible ones. Where the corpus has an end-of-text token, it
    stands at the beginning of each document, and counts as visible.

    Raises:
        ConfigError: the context is not positive.
        DataError: no document is long enough.
    """
    lengths = np.asarray(corpus.lengths[:limit_documents], dtype=np.int64)
    targets = np.maximum(lengths - int(corpus.end_of_text is None), 0)
    if context > int(targets.max(initial=0)):
        longest = int(lengths.max(initial=0))
        raise DataError(
            f"no document is long enough for a context of {context:,} tokens: the longest of the {len(lengths):,} documents "
            f"has {longest:,}; give a shorter --context, or a corpus of longer documents"
        )
    plan = plan_windows(targets, context, context)
    whole = plan.length == context
    return Plan(plan.document[whole], plan.start[whole], plan.length[whole], plan.skip[whole])


def last_tenth(context: int, trained: int | None) -> tuple[int, int]:
    """Ends of the last 10% of the training context, in visible tokens; of the window where that is shorter or alone."""
    high = min(context, trained or context)
    return high - last_tenth_length(high) + 1, high
