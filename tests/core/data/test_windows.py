"""Windows: every token is a target once; borders between documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from contextwise.base.errors import ConfigError, DataError
from contextwise.data.windows import Windows
from small import Memory

DOCUMENTS = st.lists(st.lists(st.integers(0, 98), max_size=12), min_size=1, max_size=8)


def test_worked_example():
    windows = Windows(Memory([[1, 2, 3], [4], [5, 6]]), 4, separate_documents=True)
    # 99 1 2 3 99 4 99 5 6 99: nine targets, two whole windows
    assert len(windows) == 2
    assert windows[0]["input_ids"].tolist() == [99, 1, 2, 3]
    assert windows[0]["labels"].tolist() == [1, 2, 3, 99]
    assert windows[1]["input_ids"].tolist() == [99, 4, 99, 5]
    assert windows[1]["labels"].tolist() == [4, 99, 5, 6]
    assert windows[0]["position_ids"].tolist() == [0, 1, 2, 3]
    assert windows[1]["position_ids"].tolist() == [0, 1, 0, 1]


def test_windows_inside_one_document():
    windows = Windows(Memory([[1, 2, 3], [4], [5, 6, 7, 8, 9]]), 2, cross_documents=False)
    assert [w["input_ids"].tolist() for w in (windows[i] for i in range(len(windows)))] == [
        [99, 1], [2, 3], [99, 4], [99, 5], [6, 7], [8, 9],
    ]  # fmt: skip
    assert windows[1]["labels"].tolist() == [3, 99]
    assert windows[4]["labels"].tolist() == [7, 8]


@given(documents=DOCUMENTS, context=st.integers(1, 9))
def test_every_token_is_a_target_exactly_once(documents, context):
    stream = [99]
    for document in documents:
        stream += [*document, 99]
    whole = (len(stream) - 1) // context
    if not whole:
        with pytest.raises(DataError, match="no window of"):
            Windows(Memory(documents), context)
        return
    windows = Windows(Memory(documents), context)
    assert len(windows) == whole
    batch = default_collate([windows[i] for i in range(whole)])
    assert batch["input_ids"].flatten().tolist() == stream[: whole * context]
    assert batch["labels"].flatten().tolist() == stream[1 : whole * context + 1]


@given(documents=DOCUMENTS, context=st.integers(1, 9))
def test_positions_restart_at_each_document(documents, context):
    if sum(len(d) + 1 for d in documents) < context:
        return
    windows = Windows(Memory(documents), context, separate_documents=True)
    for i in range(len(windows)):
        item = windows[i]
        expected, position = [], 0
        for token in item["input_ids"].tolist():
            position = 0 if token == 99 else position
            expected.append(position)
            position += 1
        assert item["position_ids"].tolist() == expected


def test_corpora_and_settings_without_windows_are_refused():
    with pytest.raises(DataError, match="no window of 50 tokens fits.*longest document 3.*smaller data.context"):
        Windows(Memory([[1, 2, 3]]), 50)
    with pytest.raises(DataError, match="set data.cross_documents=true"):
        Windows(Memory([[1, 2, 3]] * 40), 50, cross_documents=False)
    with pytest.raises(ConfigError, match="no end-of-text token.*cross_documents=false"):
        Windows(Memory([[1, 2], [3]], end_of_text=None), 2)
    with pytest.raises(ConfigError, match="data.context is 0"):
        Windows(Memory([[1, 2]]), 0)


def test_a_flat_file_without_end_of_text_is_one_stream():
    windows = Windows(Memory([[1, 2, 3, 4, 5]], end_of_text=None), 2)
    assert [windows[i]["input_ids"].tolist() for i in range(len(windows))] == [[1, 2], [3, 4]]
    assert windows[1]["labels"].tolist() == [4, 5]
