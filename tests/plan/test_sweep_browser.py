"""The controls of a sweep's page, in a real browser."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Opened, browser, needs_browser
from contextwise_plan.optimum import Landscape
from contextwise_plan.sweeps.page import SweepData
from contextwise_plan.tracks import budget_words


class SweepPage(Opened):
    def figure(self, name: str) -> list[dict[str, Any]]:
        """The traces that Plotly has drawn."""
        return self.do(
            "return document.getElementById(arguments[0]).data.map((t) => "
            "({name: t.name, mode: t.mode, x: t.x, y: t.y, meta: t.meta, error: t.error_y && t.error_y.array}))",
            name,
        )

    def slide(self, step: int) -> None:
        """Move the slider by its keys, as a reader does."""
        from selenium.webdriver.common.keys import Keys

        slider = self.driver.find_element("id", "budget")
        last = int(slider.get_attribute("max"))
        keys = Keys.HOME + Keys.ARROW_RIGHT * step if step <= last / 2 else Keys.END + Keys.ARROW_LEFT * (last - step)
        slider.send_keys(keys)
        assert slider.get_attribute("value") == str(step)


@pytest.fixture(scope="module")
def opened(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweepPage]:
    with browser(tmp_path_factory.mktemp("downloads")) as driver:
        yield SweepPage(driver, page)


@pytest.fixture(scope="module")
def landscapes(sweep: Path) -> dict[str, Landscape]:
    return {each.unit: each for each in SweepData(sweep).landscapes}


def drawn(opened: SweepPage) -> dict[tuple[str, int], tuple[float, float]]:
    """Size and context -> loss and half of its interval, as they stand in the figure."""
    return {
        (trace["name"], context): (loss, error)
        for trace in opened.figure("loss")
        if "lines" in trace["mode"]
        for context, loss, error in zip(trace["x"], trace["y"], trace["error"], strict=True)
    }


@pytest.mark.long
@needs_browser()
@pytest.mark.parametrize(("place", "unit"), [(0, "flops"), (2, "tokens")])
def test_the_slider_draws_the_losses(
    opened: SweepPage, landscapes: dict[str, Landscape], place: int, unit: str
) -> None:
    opened.click("#units button", place)
    landscape = landscapes[unit]
    for step in (0, 12, 85, 96):
        opened.slide(step)
        assert drawn(opened) == {
            (cell.size, cell.context): (cell.loss, cell.half_width) for cell in landscape.cells[step]
        }
        here = [best.cell for best in landscape.optima[step].values() if best.shown]
        circles = [trace for trace in opened.figure("loss") if trace["name"] == "optimum"]
        assert sorted((t["x"][0], t["y"][0]) for t in circles) == sorted((cell.context, cell.loss) for cell in here)
        shapes = opened.do("return document.getElementById('loss').layout.shapes.map((s) => [s.x0, s.line.dash])")
        assert all([x, dash] in [[cell.context, "dash"] for cell in here] for x, dash in shapes)
        words = opened.do("return document.getElementById('budget-words').textContent")
        assert words == budget_words(unit, float(landscape.budgets[step]))


@pytest.mark.long
@needs_browser()
def test_the_lines_over_the_budget_are_the_smoothed_optima(opened: SweepPage, landscapes: dict[str, Landscape]) -> None:
    for place, unit in ((2, "tokens"), (0, "flops")):
        opened.click("#units button", place)
        for size in ("pico", "nano", "micro"):
            smoothed = zip(landscapes[unit].budgets.tolist(), landscapes[unit].contexts[size], strict=True)
            wanted = {budget: context for budget, context in smoothed if context}
            line = next(t for t in opened.figure("context") if t["name"] == size and t["mode"] == "lines")
            # Lines are drawn less than a fifth of a doubling from where they lie, so that none hides another.
            assert {x: 2 ** round(math.log2(y)) for x, y in zip(line["x"], line["y"], strict=True) if y} == wanted


@pytest.mark.long
@needs_browser()
def test_the_browser_complains_of_nothing(opened: SweepPage) -> None:
    assert opened.driver.get_log("browser") == []
    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        opened.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        deadline = time.monotonic() + 10  # figures follow the window a moment later
        while opened.do("return document.documentElement.scrollWidth") > width:
            assert time.monotonic() < deadline, f"the page is wider than {width}"
            time.sleep(0.1)
