"""The tree reads as its names say: one class a name, plain English, and packages that export what others use."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdfast"
PACKAGES = sorted(folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists())
OLD_FASHIONED = re.compile(
    r"\b(whoever|whatever|whosoever|nobody|lest|anew|for want of|it is told|be it|of which|thereof)\b", re.IGNORECASE
)
FRAMEWORK_ADAPTERS = frozenset({"HubToolset"})
"""Public adapters may share a name: each framework's users know theirs by the module."""


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name not in FRAMEWORK_ADAPTERS:
                homes[node.name].add(str(path.relative_to(SOURCE)))
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


def test_source_and_documentation_use_plain_words() -> None:
    texts = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js"), *SOURCE.rglob("*.html"), *(ROOT / "docs").rglob("*.md")]
    texts += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "requirements.toml"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OLD_FASHIONED.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_exports_is_there(package: str) -> None:
    module = importlib.import_module(f"holdfast.{package}")
    names = [name for name in dir(module) if not name.startswith("_")]
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_an_exported_name_is_not_hidden_by_a_module(package: str) -> None:
    """Importing a submodule sets its name on the package: an export of that name would change its meaning."""
    module = importlib.import_module(f"holdfast.{package}")
    for name in dir(module):
        file = SOURCE / package / f"{name}.py"
        if file.exists():
            assert getattr(module, name).__name__ == f"holdfast.{package}.{name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_exports_that_run(package: str) -> None:
    module = importlib.import_module(f"holdfast.{package}")
    tree = ast.parse((SOURCE / package / "__init__.py").read_text())
    declared = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert declared <= set(dir(module))
    if "lazy_exports" in vars(module):
        assert declared == {name for name in module.__dir__() if not name.startswith("__")}
