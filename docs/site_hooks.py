"""Hooks of the documentation site: draws diagrams, brings in files from outside `docs/`, writes `llms.txt`.

The pages are written for a reader of the repository: links lead to files of it. The site gets those files too, so
that every link works there and is checked.
"""

from __future__ import annotations

import os
import re
import sys
from html import escape, unescape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from diagrams import drawn

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the repository's root, and their place on the site. The site has a start page of its own."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?!https?:|mailto:|#)[^)\s]+)\)")
_SESSION = re.compile(r'(?s)<div class="highlight">(<pre><span></span><code>(<span class="gp">.*?)</code>)')
"""A terminal session, as the highlighter writes it: it begins with a prompt."""
_MERMAID = re.compile(r"(?ms)^```mermaid\n(.*?)\n```$")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out pages that this checkout does not have."""
    config.nav = _present(config.nav or [])
    return config


def _present(nav: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            kept += [entry] if _exists(entry) else []
            continue
        ((title, inside),) = entry.items()
        if isinstance(inside, list):
            kept += [{title: found}] if (found := _present(inside)) else []
        elif _exists(inside):
            kept.append(entry)
    return kept


def _exists(page: str) -> bool:
    return (DOCS / page).exists() or page in PAGES.values()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Bring in the pages of the root, and every file that a page links to."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    wanted: set[str] = set()
    for file in list(files.documentation_pages()):
        folder = _folder(file.src_uri)
        for _, link in _LINK.findall(file.content_string):
            target = _target(folder, link.partition("#")[0])
            if target is not None and _is_brought_in(target):
                wanted.add(target)
    for target in sorted(wanted):
        files.append(File.generated(config, f"repository/{target}", content=(ROOT / target).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the hook gets them by name
    """Draw the diagrams, and turn links to files outside `docs/` into links of the site."""
    folder = _folder(page.file.src_uri)

    def linked(found: re.Match[str]) -> str:
        words, (path, mark, anchor) = found[1], found[2].partition("#")
        target = _target(folder, path) if path else None
        if target is None:
            return found[0]
        place = _place(target)
        if place is None:  # a folder: there is no page for it
            return f"{words} (`{target}`)" if (ROOT / target).is_dir() else found[0]
        here = str(PurePosixPath(page.file.src_uri).parent)
        return f"[{words}]({os.path.relpath(place, here)}{mark}{anchor})"

    return _MERMAID.sub(lambda found: drawn(found[1]), _LINK.sub(linked, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the hook gets them by name
    """Let the copy button of a terminal session copy its commands: not the prompt, and not what was printed."""
    return _SESSION.sub(_with_copy, html)


def _with_copy(found: re.Match[str]) -> str:
    commands = commands_in(unescape(re.sub(r"<[^>]+>", "", found[2])))
    return f'<div class="highlight" data-copy="{escape(commands)}">{found[1]}' if commands else found[0]


def commands_in(session: str) -> str:
    """The lines after a prompt, and the lines that continue them."""
    kept: list[str] = []
    continues = False
    for line in session.splitlines():
        if line.startswith("$ ") or continues:
            kept.append(line if continues else line.removeprefix("$ "))
            continues = line.endswith("\\")
    return "\n".join(kept)


def _is_brought_in(target: str) -> bool:
    """Whether the site needs a copy of this file: it is outside `docs/`, or in it and no page."""
    if target in PAGES or target == "README.md" or not (ROOT / target).is_file():
        return False
    return not target.startswith("docs/") or target.endswith(".py")


def _place(target: str) -> str | None:
    """Where the site has a file of the repository."""
    if target == "README.md":
        return "index.md"
    if target in PAGES:
        return PAGES[target]
    if _is_brought_in(target):
        return f"repository/{target}"
    return target.removeprefix("docs/") if target.startswith("docs/") and (ROOT / target).is_file() else None


def _folder(place: str) -> PurePosixPath:
    """The folder in the repository that the links of a page start from."""
    original = next((source for source, own in PAGES.items() if own == place), None)
    return PurePosixPath(".") if original else PurePosixPath("docs", place).parent


def _target(folder: PurePosixPath, path: str) -> str | None:
    """The path in the repository that a link leads to; None if it leads out of it."""
    target = os.path.normpath(folder / path)
    return None if target.startswith("..") else target


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`: every page with its first sentence, for programs that read documentation."""
    lines = ["# Holdfast", "", f"> {config.site_description}", ""]
    _index(config.nav or [], lines, 2)
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n")


def _index(nav: list[Any], lines: list[str], level: int) -> None:
    for entry in nav:
        if isinstance(entry, str):
            lines.append(_described(entry, None))
            continue
        ((title, inside),) = entry.items()
        if isinstance(inside, list):
            lines += ["", f"{'#' * min(level, 3)} {title}", ""]
            _index(inside, lines, level + 1)
        else:
            lines.append(_described(inside, title))


def _described(place: str, title: str | None) -> str:
    source = next((ROOT / name for name, own in PAGES.items() if own == place), DOCS / place)
    text = re.sub(r"(?ms)^```.*?^```$", "", source.read_text())
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    first = re.search(r"\n\n([A-Z][^\n#|`<].*?[.:])(?:\s|$)", text, re.DOTALL)
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first[1].split())) if first else ""
    address = re.sub(r"README$", "index", place.removesuffix(".md"))
    return f"- [{title or (heading[1] if heading else place)}]({address}.html): {words}"
