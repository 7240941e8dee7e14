"""The page on attention: its numbers, and its controls in a real browser."""

import dataclasses
import json
import re
import time

import numpy as np
import pytest

from attention_readings import PIECES, model, reading
from browser import Opened, browser, needs_browser
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import written
from contextwise_papers.contextlm.attention import mean_received
from contextwise_papers.contextlm.attention_page import lens_words, numbers, page_data, write_attention_page

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found():
    return reading(model("GPT-2", 0), model("Context <LM>", 1, layers=3, chunk_size=4))


@pytest.fixture(scope="module")
def page(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("attention") / "page.html"
    write_attention_page(found, path, ["contextwise", "measure", "attention", "a model", "--text", "x<i>.txt"])
    return path


def test_the_page_holds_the_numbers(found, page):
    text = page.read_text()
    data = json.loads(re.search(r'<script type="application/json" id="reading">(.*?)</script>', text).group(1))
    assert data["pieces"] == PIECES and data["chunkSize"] == 4
    for told, one in zip(data["models"], found.models, strict=True):
        np.testing.assert_allclose(told["layers"], np.stack(one.layers), rtol=1e-4)
        assert told["nats"][0] is None
        np.testing.assert_allclose(told["nats"][1:], one.nats[1:], rtol=1e-4)
    assert data["models"][0]["without"] is None and data["models"][1]["contextChunk"] == 4
    assert "contextwise measure attention &#x27;a model&#x27; --text &#x27;x&lt;i&gt;.txt&#x27;" in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<b>" not in outside and "<LM>" not in outside and "http" not in re.sub("<meta.*?>", "", outside)
    for place, piece in enumerate(PIECES[1:5], start=1):  # without the script, a table has them all
        shown = piece.replace(" ", "␣").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert f'<th scope="row">{place}: {shown.replace(chr(10), "↵")}</th>' in outside
        assert f"<td>{found.models[0].received()[place]:.4f}</td>" in outside
        assert f"<td>{written(found.models[1].lens[place], '+.3f')}</td>" in outside


def test_the_words_are_of_the_numbers(found):
    context = found.models[1]
    said = lens_words(found)
    assert np.nansum(context.lens) < 0
    assert f"over the text it costs {-np.nansum(context.lens):.2f} nats" in said[0]
    helped = dataclasses.replace(context, nats_without=context.nats + 0.25)
    assert "it saves 2.25 nats. It helped at 9 of 9 tokens and hurt at 0." in lens_words(reading(helped))[0]
    assert f"helped at {(context.lens[1:] > 0).sum()} of 9 tokens" in said[0]
    assert "switching it off is an intervention: it shows how much" in said[1]
    assert lens_words(reading(found.models[0])) == []
    told = numbers(found)
    assert told["models"][1]["lens_total"] == pytest.approx(np.nansum(context.lens))
    assert told["models"][0]["token_nats"][0] is None and "lens_total" not in told["models"][0]
    json.dumps(told, allow_nan=False)


def test_places_that_cannot_be_written_are_refused(found, tmp_path):
    with pytest.raises(ConfigError, match="is a folder; give the name of a file"):
        write_attention_page(found, tmp_path)


class AttentionPage(Opened):
    def tints(self, name):
        """Share of colour behind each token, in per cent, and whether it is of the first model's colour."""
        styles = self.do(
            "return [...document.getElementById(arguments[0]).children].map((t) => t.style.background)", name
        )
        found = [re.search(r"var\((--[\w-]+)\) ([\d.]+)%", style) for style in styles]
        return [(match[1], float(match[2])) if match else None for match in found]

    def shares(self, name):
        return np.array([tint[1] for tint in self.tints(name)])

    def bars(self, name="chunks"):
        return self.do("return document.getElementById(arguments[0]).data.map((t) => t.y)", name)

    def choose(self, select, value):
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_element("id", select)).select_by_value(str(value))


@pytest.fixture(scope="module")
def opened(page, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("downloads")) as driver:
        yield AttentionPage(driver, page)


def colours(values, most):
    return np.minimum(1, np.abs(values) / most) * 55


@needs_browser()
def test_layers_heads_and_measures_change_the_picture(opened, found):
    first, second = found.models
    for layer, head, wanted in (
        (0, 0, second.received()),
        (3, 0, mean_received(second.layers[2].mean(axis=0))),
        (2, 3, mean_received(second.layers[1][2])),
        (0, 1, mean_received(np.mean([sums[0] for sums in second.layers], axis=0))),
    ):
        opened.choose("layer-1", layer)
        opened.choose("head-1", head)
        most = max(first.received()[1:].max(), wanted[1:].max())  # without the first token
        assert opened.shares("received-0") == pytest.approx(colours(first.received(), most), abs=0.06)
        assert opened.shares("received-1") == pytest.approx(colours(wanted, most), abs=0.06)
        difference = wanted - first.received()
        widest = np.abs(difference[1:]).max()
        assert opened.shares("difference-1") == pytest.approx(colours(difference, widest), abs=0.06)
        signs = ["--more" if value > 0 else "--less" for value in difference]
        assert [tint[0] for tint in opened.tints("difference-1")] == signs
        for bars, values in zip(opened.bars(), (first.received(), wanted), strict=True):
            assert bars == pytest.approx(found.chunk_sums(values), rel=1e-3)
    opened.choose("head-1", 0)
    opened.click("#measure button", 1)
    for bars, one in zip(opened.bars(), found.models, strict=True):
        assert bars == pytest.approx(found.chunk_sums(one.received("sum")), rel=1e-3)
        assert sum(bars) == pytest.approx(len(PIECES), rel=1e-3)
    opened.click("#measure button", 0)


@needs_browser()
def test_the_first_token_is_left_out_of_the_scale_or_not(opened, found):
    received = [one.received() for one in found.models]
    assert "beyond" in opened.do("return document.getElementById('received-0').firstChild.className")
    opened.click("#sink")
    most = max(values.max() for values in received)
    for i, values in enumerate(received):
        assert opened.shares(f"received-{i}") == pytest.approx(colours(values, most), abs=0.06)
    assert opened.do("return document.querySelectorAll('#received-0 .beyond, #received-1 .beyond').length") == 0
    opened.click("#sink")


@needs_browser()
def test_the_lens_is_told_by_colour_and_by_line(opened, found):
    values = found.models[1].lens
    most = np.nanmax(np.abs(values))
    tints = opened.tints("lens-1")
    assert tints[0] is None  # nothing predicts the first token
    assert [tint[1] for tint in tints[1:]] == pytest.approx(colours(values[1:], most), abs=0.06)
    assert [tint[0] for tint in tints[1:]] == ["--less" if value > 0 else "--more" for value in values[1:]]
    lines = opened.do(
        "return [...document.getElementById('lens-1').children].map((t) => t.classList.contains('worse'))"
    )
    assert lines[1:] == [bool(value < -0.02 * most) for value in values[1:]]


@needs_browser()
def test_a_token_tells_its_numbers(opened, found):
    opened.click("#lens-1 span", 3)
    told = opened.do("return document.getElementById('readout').textContent")
    assert told.startswith("3 “ said”, chunk 0. GPT-2: received ")
    assert f"loss {found.models[1].nats[3]:.3f}" in told
    assert f"lens {found.models[1].lens[3]:+.3f}".replace("-", "−") in told
    here = opened.do("return [...document.querySelectorAll('.here')].map((t) => t.dataset.index)")
    assert here == ["3"] * 4  # in both texts, their difference and the lens


@needs_browser()
def test_the_text_stands_there_whole_and_the_page_is_narrow(opened):
    shown = opened.do("return document.getElementById('received-0').textContent")
    assert shown == "".join(PIECES).replace("\n", "↵\n")
    assert opened.driver.get_log("browser") == []
    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        opened.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        deadline = time.monotonic() + 10
        while opened.do("return document.documentElement.scrollWidth") > width:
            assert time.monotonic() < deadline, f"the page is wider than {width}"
            time.sleep(0.1)


@needs_browser()
@pytest.mark.parametrize(
    "models",
    [pytest.param([model("one", 0, layers=1, heads=1)], marks=pytest.mark.slow), [model(f"m{i}", i) for i in range(3)]],
)
def test_one_model_and_three(opened, tmp_path, models):
    write_attention_page(reading(*models, chunk_size=1), tmp_path / "page.html")
    opened.driver.get((tmp_path / "page.html").as_uri())
    assert len(opened.bars()) == len(models) and len(opened.bars()[0]) == len(PIECES)
    assert len(opened.driver.find_elements("css selector", "[id^=difference-]")) == len(models) - 1
    names = {1: "What one attends to", 3: "What m0, m1 and m2 attend to"}
    assert opened.driver.find_element("tag name", "h1").text == names[len(models)]
    assert opened.driver.get_log("browser") == []


def test_numbers_are_rounded_for_the_page_only(found):
    assert page_data(found)["models"][0]["nats"][1] == float(f"{found.models[0].nats[1]:.5g}")
    assert found.models[0].nats[1] != page_data(found)["models"][0]["nats"][1]
