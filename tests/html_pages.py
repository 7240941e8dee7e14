"""Pages of HTML, read by their elements."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self.inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside == "style":
            self.styles.append(data)
        else:
            self.text += data

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def figures(self) -> dict[str, Any]:
        return json.loads(next(script for script in self.scripts if script.lstrip().startswith("{")))
