"""The page on attention, its table and its numbers."""

import json
import re

import numpy as np
import pytest

from attention_readings import PIECES, model, reading
from contextwise_papers.contextlm.attention_page import numbers, received_table, write_attention_page


@pytest.fixture(scope="module")
def found():
    return reading(model("GPT-2", 0), model("Context <LM>", 1, layers=3, chunk_size=4))


def test_the_page_draws_each_token_and_lists_the_chunks(found, tmp_path):
    path = tmp_path / "page.html"
    write_attention_page(found, path, ["contextwise", "measure", "attention", "a model", "--text", "x<i>.txt"])
    text = path.read_text()
    figures = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', text).group(1))
    received, shares = (figures[f"plot-{i}"]["data"] for i in range(2))
    for line, one in zip(received, found.models, strict=True):
        assert line["y"] == pytest.approx(one.received()[1:])  # the token before the text is left out
    assert shares[1]["y"] == pytest.approx(found.models[1].received()[1:] / found.models[0].received()[1:])
    assert "contextwise measure attention &#x27;a model&#x27; --text &#x27;x&lt;i&gt;.txt&#x27;" in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<b>" not in outside and "<LM>" not in outside and "http" not in re.sub("<meta.*?>", "", outside)
    assert "What GPT-2 and Context &lt;LM&gt; attend to" in outside
    for row in received_table(found).rows:
        assert f"<td>{row[1]}</td>" in outside and f"<td>{row[2]}</td>" in outside


def test_one_model_is_compared_with_none(tmp_path):
    write_attention_page(reading(model("one", 0)), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "What one attends to" in text and "over that from" not in text


def test_numbers_for_programs(found):
    result = numbers(found)
    assert result["tokens"] == PIECES and result["chunk_size"] == 4
    for told, one in zip(result["models"], found.models, strict=True):
        np.testing.assert_allclose(told["token_received"], one.received())
        np.testing.assert_allclose(told["chunk_received"], found.chunk_sums(one.received()))
    json.dumps(result, allow_nan=False)
