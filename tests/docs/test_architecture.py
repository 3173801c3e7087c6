"""The architecture page shows the packages as they are, and the diagram says the same as the imports."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_architecture", ROOT / "docs" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_architecture"] = module
    spec.loader.exec_module(module)
    return module


def test_every_package_of_the_file_system_is_on_the_page() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    packages = {path.parent.name for path in (ROOT / "src/holdfast").glob("*/__init__.py")}
    assert packages
    assert {name for name in packages if f"| `{name}` |" not in page} == set()


def test_a_package_imports_only_from_rows_below_it(generator: ModuleType) -> None:
    imports = {"cli": frozenset({"hub", "core"}), "hub": frozenset({"core"}), "core": frozenset[str]()}
    assert generator.layers(imports) == [["core"], ["hub"], ["cli"]]


def test_the_diagram_leaves_out_an_import_that_a_chain_implies(generator: ModuleType) -> None:
    imports = {"cli": frozenset({"hub", "core"}), "hub": frozenset({"core"}), "core": frozenset[str]()}
    assert generator.reduced(imports) == {"cli": {"hub"}, "hub": {"core"}, "core": frozenset()}


def test_a_cycle_between_packages_is_refused(generator: ModuleType) -> None:
    with pytest.raises(SystemExit, match="import cycle among a, b"):
        generator.layers({"a": frozenset({"b"}), "b": frozenset({"a"})})


def test_an_import_for_type_checkers_counts(generator: ModuleType) -> None:
    """A dependency is seen in a source text, wherever in the module it is."""
    imports = generator.package_imports()
    for name, used in imports.items():
        folder = ROOT / "src/holdfast" / name
        sources = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
        text = "\n".join(path.read_text() for path in sources)
        named = set(re.findall(r"^\s*(?:from|import) holdfast\.(\w+)", text, flags=re.MULTILINE))
        assert used == (named & imports.keys()) - {name}, name


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_the_map_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text))
    missing = {name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "src/holdfast"))}
    assert named
    assert missing == set()
