"""Write the generated blocks of ``docs/architecture.md``: the packages from their imports, the states from the table.

The packages come from the file system and their imports from grimp, so the page is right after every move. Imports
for type checkers count: they are dependencies for a reader too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import grimp

import holdfast
from holdfast.core.lifecycle.table import diagram

__all__ = ["architecture", "layers", "package_imports", "reduced"]

PAGE = Path(__file__).parent / "architecture.md"
SOURCE = Path(holdfast.__file__).parent

Imports = Mapping[str, frozenset[str]]
"""Each package with the packages that it imports."""


def architecture() -> dict[Path, str]:
    """The page, with its blocks as they must be."""
    imports = package_imports()
    blocks = {
        "packages": _mermaid(_flowchart(imports)),
        "table": _table(imports),
        "states": _mermaid(diagram()),
    }
    text = PAGE.read_text()
    for name, block in blocks.items():
        text, count = re.subn(
            rf"(?s)(<!-- generated: {name} -->\n).*?(<!-- end -->)", lambda found, new=block: _filled(found, new), text
        )
        if count != 1:
            raise SystemExit(f"{PAGE.name} needs one block `<!-- generated: {name} -->`")
    return {PAGE: text}


def _filled(found: re.Match[str], block: str) -> str:
    return f"{found[1]}{block}\n{found[2]}"


def package_imports() -> dict[str, frozenset[str]]:
    """The packages and single modules directly under ``holdfast``, with what each imports among them."""
    graph = grimp.build_graph("holdfast", cache_dir=None)
    names = {path.stem: f"holdfast.{path.stem}" for path in SOURCE.iterdir() if _is_part(path)}
    for module in names.values():
        if graph.find_children(module):
            graph.squash_module(module)
    return {
        name: frozenset(
            found.removeprefix("holdfast.")
            for found in graph.find_modules_directly_imported_by(module)
            if found != module and found.removeprefix("holdfast.") in names
        )
        for name, module in sorted(names.items())
    }


def _is_part(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").exists()
    return path.suffix == ".py" and not path.stem.startswith("_")


def layers(imports: Imports) -> list[list[str]]:
    """The packages in rows, lowest first: each row imports only from rows before it."""
    rows: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(imports):
        row = [name for name, used in imports.items() if name not in placed and used <= placed]
        if not row:
            raise SystemExit(f"import cycle among {', '.join(sorted(imports.keys() - placed))}")
        rows.append(row)
        placed.update(row)
    return rows


def reduced(imports: Imports) -> dict[str, frozenset[str]]:
    """Without an import that a chain of other imports implies: the picture has only the lines that it needs."""
    return {
        name: used - {deep for other in used for deep in _reachable(other, imports)} for name, used in imports.items()
    }


def _reachable(name: str, imports: Imports) -> frozenset[str]:
    found: set[str] = set()
    pending = list(imports[name])
    while pending:
        if (one := pending.pop()) not in found:
            found.add(one)
            pending += imports[one]
    return frozenset(found)


def _flowchart(imports: Imports) -> str:
    lines = ["flowchart TD"]
    for number, row in reversed(list(enumerate(layers(imports)))):
        lines.append(f"    subgraph layer{number}[ ]")
        lines += [f"        {name}" for name in row]
        lines.append("    end")
    lines += [f"    {name} --> {used}" for name, all_used in reduced(imports).items() for used in sorted(all_used)]
    return "\n".join(lines)


def _table(imports: Imports) -> str:
    rows = ["| | purpose | imports |", "|---|---|---|"]
    for row in reversed(layers(imports)):
        for name in row:
            used = ", ".join(f"`{one}`" for one in sorted(imports[name]))
            rows.append(f"| `{name}` | {_purpose(name)} | {used} |")
    return "\n".join(rows)


def _purpose(name: str) -> str:
    """The first sentence of the package's docstring."""
    folder = SOURCE / name
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?:\s|$)|:\s", text, maxsplit=1)[0].replace("``", "`").replace("|", "\\|")


def _mermaid(text: str) -> str:
    return f"```mermaid\n{text}\n```"
