"""A real browser, moved as a reader moves it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def needs_browser() -> Any:
    """A mark for tests that need the browser."""
    return pytest.mark.skipif(
        BROWSER is None or DRIVER is None, reason="needs the chromium browser and chromium-driver"
    )


class Opened:
    """A page in the browser."""

    def __init__(self, driver: Any, page: Path) -> None:
        self.driver = driver
        driver.get(page.as_uri())

    def do(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def click(self, selector: str, place: int = 0) -> None:
        found = self.driver.find_elements("css selector", selector)[place]
        self.do("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()


@contextmanager
def browser(downloads: Path) -> Iterator[Any]:
    """Headless Chromium, whose downloads go into a folder."""
    pytest.importorskip("selenium", reason="needs selenium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    try:
        behaviour = {"behavior": "allow", "downloadPath": str(downloads)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        yield driver
    finally:
        driver.quit()
