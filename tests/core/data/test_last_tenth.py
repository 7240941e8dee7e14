"""Windows that end in the same targets whatever their context; logarithmic bins."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.windows import LastTenthWindows, last_tenth_length
from small import Memory


def text(lengths, end_of_text=0):
    """Documents whose tokens are all different: a token is its position plus one."""
    return Memory([range(start + 1, end + 1) for start, end in pairwise(np.cumsum([0, *lengths]))], end_of_text)


def tails(windows):
    """Targets of the last tenth of each window."""
    return np.concatenate(
        [windows[i]["labels"].numpy()[-last_tenth_length(windows.context) :] for i in range(len(windows))]
    )


def test_worked_example():
    # end-of-text, 1 ... 45: two blocks of 20 inputs, whose last two targets are 19, 20 and 39, 40.
    corpus = text([45])
    long = LastTenthWindows(corpus, 20, None, tokens=10_000)
    assert [window["input_ids"].tolist() for window in (long[0], long[1])] == [list(range(20)), list(range(20, 40))]
    assert tails(long).tolist() == [19, 20, 39, 40]
    short = LastTenthWindows(corpus, 5, 20, tokens=10_000)
    assert [short[i]["input_ids"].tolist() for i in range(len(short))] == [
        [14, 15, 16, 17, 18], [15, 16, 17, 18, 19], [34, 35, 36, 37, 38], [35, 36, 37, 38, 39],
    ]  # fmt: skip
    assert tails(short).tolist() == [19, 20, 39, 40]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 400), min_size=1, max_size=6),
    longest=st.integers(1, 120),
    share=st.floats(0.01, 1),
    end=st.sampled_from([0, None]),
    tokens=st.integers(1, 3000),
)
def test_every_context_ends_in_the_same_targets(lengths, longest, share, end, tokens):
    corpus, context = text(lengths, end), max(1, round(share * longest))
    blocks = sum((n + (end is not None) - 1) // longest for n in lengths if n + (end is not None) > 1)
    if not blocks:
        with pytest.raises(DataError, match=f"longer than {longest} tokens"):
            LastTenthWindows(corpus, context, longest, tokens)
        return
    long, short = (LastTenthWindows(corpus, c, longest, tokens) for c in (longest, context))
    assert len(long) == min(blocks, max(1, tokens // longest))
    result, wanted = tails(short), tails(long)
    assert len(set(result)) == len(result)  # none twice
    # The last ones of each block; a tenth of the context may not go into a tenth of the block.
    kept = last_tenth_length(longest) // last_tenth_length(context) * last_tenth_length(context) or last_tenth_length(
        context
    )
    assert result.tolist() == wanted.reshape(-1, last_tenth_length(longest))[:, -kept:].ravel().tolist()
    for windows in (long, short):
        for i in range(len(windows)):
            item = windows[i]
            sequence = [*([] if end is None else [end]), *corpus.document(int(item["document"]))]
            first = sequence.index(int(item["input_ids"][0]))
            assert item["input_ids"].tolist() == sequence[first : first + windows.context]
            assert item["labels"].tolist() == sequence[first + 1 : first + 1 + windows.context]


def test_invalid_settings_are_refused():
    with pytest.raises(ConfigError, match="longest context to compare is 10, shorter than the training context 20"):
        LastTenthWindows(text([100]), 20, 10, 100)
    with pytest.raises(DataError, match="the longest has 100"):
        LastTenthWindows(text([100, 20]), 20, 128, 100)
    with pytest.raises(IndexError):
        LastTenthWindows(text([100]), 20, 20, 100)[5]
