"""Hooks of mkdocs: pages of the repository's root in the site, and links to files that are no pages as plain text."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md"}
"""File of the repository -> page of the site."""
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links point to pages of the site; a link to another file of the repository becomes its text."""
    origins = {page: source for source, page in PAGES.items()}
    here = PurePosixPath(origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = (ROOT / here / path).resolve().relative_to(ROOT).as_posix()
        if target in PAGES:
            return f"[{text}]({up}{PAGES[target]}{anchor})"
        if target.startswith("docs/"):
            return f"[{text}]({up}{target.removeprefix('docs/')}{anchor})"
        return text

    return _LINK.sub(link, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the script of a search from disk from the site, not from a network."""
    up = "../" * page.file.src_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{up}offline.js")


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for pages that are no Markdown: 404.html."""
    return output_content.replace("https://unpkg.com/iframe-worker/shim", "offline.js")
