"""The tree reads as its names say: one class a name, plain English, and packages that export what others use."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
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

MOST_METHODS = 15
LARGE_CLASSES = frozenset[str]()
"""Classes with more methods than that. The list only gets shorter: a new class with so many has a second one inside."""

SHARED_BASENAMES = frozenset[str]()
"""Names that two modules have. The list only gets shorter: a reader looks for a behaviour by the name of its file."""

UNAWAITED = frozenset[str]()
"""Functions that return a coroutine for their caller to await. The list only gets shorter."""

TEXTUAL_DECISIONS = frozenset[str]()
"""Modules that decide by the text of an exception. The list only gets shorter: a decision reads a type or a field."""

LATE_CALLBACKS = frozenset[str]()
"""Callbacks that an object gets after it is made. The list only gets shorter: a constructor takes its collaborators."""

EXCEPTION_NAMES = frozenset({"exc", "error", "cause", "failure", "problem", "fault", "raised"})


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Each module of the sources: its path, and what it says."""
    files = sorted(SOURCE.rglob("*.py"))
    return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())) for path in files]


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in FRAMEWORK_ADAPTERS:
                homes[node.name].add(path)
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


def test_no_class_has_more_methods_than_a_reader_keeps_in_mind() -> None:
    found = {
        f"{node.name}: {count}"
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if (count := sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)) > MOST_METHODS
        if node.name not in LARGE_CLASSES
    }
    assert found == set()


def test_no_two_modules_share_a_name() -> None:
    names = Counter(path.rpartition("/")[2] for path, _ in modules())
    del names["__init__.py"]
    assert {name for name, count in names.items() if count > 1} - SHARED_BASENAMES == set()


def test_what_is_asynchronous_is_awaited_where_it_is_called() -> None:
    """One straight path: no function hands its caller a coroutine, for then nothing says where it runs."""
    found = {
        f"{path}: {node.name}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if re.search(r"\b(Coroutine|Awaitable)\[", ast.unparse(node.returns).partition("Callable[")[0])
    }
    assert {one for one in found if one.rpartition(" ")[2] not in UNAWAITED} == set()


def test_no_decision_reads_the_text_of_an_exception() -> None:
    found = {path for path, tree in modules() if any(_reads_a_text(function) for function in ast.walk(tree))}
    assert found - TEXTUAL_DECISIONS == set()


def _reads_a_text(node: ast.AST) -> bool:
    """Whether this is ``... in str(exc)``, ``str(exc) == ...`` or ``str(exc).startswith(...)``."""
    if isinstance(node, ast.Compare):
        return any(_is_text_of_exception(one) for one in (node.left, *node.comparators))
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("startswith", "endswith", "find", "partition")
        and _is_text_of_exception(node.value)
    )


def _is_text_of_exception(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "str"
        and any(isinstance(one, ast.Name) and one.id in EXCEPTION_NAMES for one in node.args)
    )


def test_no_object_gets_a_callback_after_it_is_made() -> None:
    found = {f"{path}: {name}" for path, tree in modules() for name in _late_callbacks(tree)}
    assert {one for one in found if one.rpartition(" ")[2] not in LATE_CALLBACKS} == set()


def _late_callbacks(tree: ast.Module) -> Iterator[str]:
    """Attributes of other objects that are set to a function: a lambda, a partial, a method of this object's."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    variables = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    plain = {one.name for one in functions if not one.args.args or one.args.args[0].arg != "self"} - variables
    methods = {one.name for one in functions if not one.decorator_list} - plain
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        match node.value:
            case ast.Lambda() | ast.Call(func=ast.Name(id="partial")):
                pass
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in methods:
                pass
            case ast.Name(id=name) if name in plain:
                pass
            case _:
                continue
        for target in node.targets:
            match target:
                case ast.Attribute(value=ast.Name(id="self")):
                    pass  # its own: whole when it is made
                case ast.Attribute(attr=name):
                    yield name


def test_every_import_of_the_tests_is_there() -> None:
    """The lazy exports of a package let a type checker believe in modules that have moved."""
    missing = []
    for folder in ("tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for package, name in _imports_of_packages(ast.parse(path.read_text())):
                if not _is_there(package, name):
                    missing.append(f"{path.relative_to(ROOT)}: from {package} import {name}")
    assert missing == []


def _imports_of_packages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("holdfast", "tests"):
            yield from ((node.module, alias.name) for alias in node.names)


def _is_there(package: str, name: str) -> bool:
    """Whether a module or a package has this; of a module only the file is looked for: a type checker does the rest."""
    base = ROOT / "src" if package.startswith("holdfast") else ROOT
    place = base.joinpath(*package.split("."))
    if place.with_suffix(".py").exists():
        return True
    if (place / f"{name}.py").exists() or (place / name).is_dir():
        return True
    return package.startswith("holdfast") and hasattr(importlib.import_module(package), name)


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
