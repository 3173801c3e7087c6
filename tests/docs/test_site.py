"""The documentation site: it builds without a broken link, loads nothing from elsewhere, and can be searched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.requirement("DX-6")

ROOT = Path(__file__).parents[2]

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^\s"'>]+"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|next|prev))[^>]*\bhref=["']?(?:https?:)?//[^\s"'>]+""",
    re.IGNORECASE,
)
"""What a browser loads by itself. A link that a reader follows is no load."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [found for page in pages for found in LOADED.findall(page.read_text())] == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", sheet.read_text()) == [], sheet


@pytest.mark.requirement("DX-13")
def test_the_copy_button_copies_the_command_without_prompt_and_output(site: Path) -> None:
    copied = re.findall(r'data-copy="([^"]*)"', (site / "tutorial.html").read_text())
    assert "pipx install holdfast-mcp" in copied
    assert any(one.count("\n") == 2 and "holdfast list" in one for one in copied), "one command a line"
    call = next(one for one in copied if one.startswith("holdfast call files word_count"))
    assert "\n" not in call, "the output of the call is not copied"
    assert not any("$ " in one for one in copied)


def test_every_page_of_the_menu_is_found_by_search_and_by_llms_txt(site: Path) -> None:
    menu = pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = [page for page in menu if (site / address(page)).exists()]
    missing = {page for page in menu if page not in there}
    assert missing <= {"security.md"}, "a page of the menu is missing"
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    listed = (site / "llms.txt").read_text()
    for page in there:
        assert address(page) in found, page
        assert f"({address(page)})" in listed, page


def pages_in(nav: list[object]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        if isinstance(entry, str):
            found.append(entry)
        elif isinstance(entry, dict):
            for inside in entry.values():
                found += pages_in(inside) if isinstance(inside, list) else [inside]
    return found


def address(page: str) -> str:
    return re.sub(r"README$", "index", page.removesuffix(".md")) + ".html"


@pytest.mark.requirement("DX-7")
def test_the_runbook_of_every_alert_is_a_place_of_the_site(site: Path) -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}
    for alert, url in urls.items():
        page, _, anchor = url.partition("#")
        text = (site / page).read_text()
        found = re.search(rf'<h3 id="{anchor}">(\w+)<', text)
        assert found is not None, f"{url} leads nowhere"
        assert found[1] == alert
    (shown,) = {url.partition("#")[0] for url in urls.values()}
    sections = re.findall(r'<h3 id="\w+">(\w+)<', (site / shown).read_text())
    assert sorted(sections) == sorted(urls), "a section without an alert"


@pytest.mark.parametrize("page", ["architecture", "concepts/lifecycle"])
def test_diagrams_are_pictures_of_our_own(site: Path, page: str) -> None:
    text = (site / f"{page}.html").read_text()
    assert '<svg xmlns="http://www.w3.org/2000/svg" viewBox=' in text
    assert 'class="diagram"' in text
    assert "mermaid" not in text


def test_the_pictures_of_the_status_page_are_written_by_the_browser_tests() -> None:
    documented = {file.stem for file in (ROOT / "docs/images/status-page").iterdir()}
    source = (ROOT / "tests/control/server/test_page_hundred.py").read_text()
    named = set(re.findall(r'keep_picture\(\s*f?"([^"]+)"', source))
    patterns = [re.escape(name).replace(r"\{number\}", r"\d+").replace(r"\{scheme\}", r"\w+") for name in named]
    patterns = [pattern.replace(r"\{width\}", r"\d+") for pattern in patterns]
    assert {name for name in documented if not any(re.fullmatch(one, name) for one in patterns)} == set()
