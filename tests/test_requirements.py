"""The register of requirements and the marks of the tests agree, in both directions.

The sources are parsed, not run: the answer does not depend on the tests that were selected. Benchmarks do not count:
they measure, and a measurement alone proves no requirement. Nor do tests that are not part of the ordinary run: what
only they show would go unnoticed by ``make test``.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Proof:
    """A place in the tests that names the requirement that it proves."""

    id: str
    place: str
    ordinary: bool = True
    """Whether ``make test`` runs it."""


def in_force(register: Path) -> dict[str, str]:
    """The ids of the register, with their texts."""
    groups = tomllib.loads(register.read_text())
    return {id_: words for group in groups.values() for id_, words in group.items()}


def proofs(root: Path) -> list[Proof]:
    """The ids that the marks in ``tests/**/test_*.py`` name."""
    tests = sorted((root / "tests").rglob("test_*.py"))
    found = [(path, node, ordinary) for path in tests for node, ordinary in _marks(_parsed(path))]
    return [
        Proof(_literal(node, path), f"{path.relative_to(root)}:{node.lineno}", ordinary)
        for path, node, ordinary in found
    ]


def unproven(register: dict[str, str], claims: list[Proof]) -> list[str]:
    """The ids in force that no test of the ordinary run names."""
    return sorted(register.keys() - {claim.id for claim in claims if claim.ordinary})


def unknown(register: dict[str, str], claims: list[Proof]) -> list[str]:
    """The marks that name an id that is not in force."""
    return [f"{claim.id} at {claim.place}" for claim in claims if claim.id not in register]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _marks(tree: ast.Module) -> Iterator[tuple[ast.expr, bool]]:
    """The arguments of every ``pytest.mark.requirement(…)`` in a module, and whether the ordinary run has its test."""
    whole = [
        one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"
    ]
    in_module = not any(map(_is_extra, whole))
    for part in tree.body:
        tests = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        decorators = part.decorator_list if isinstance(part, tests) else []
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requirement":
                for argument in node.args:
                    yield argument, in_module and not any(map(_is_extra, decorators))


def _is_extra(marks: ast.expr) -> bool:
    """Whether all that is marked so runs in ``make test-long`` or ``make test-field`` alone."""
    each = marks.elts if isinstance(marks, ast.List | ast.Tuple) else [marks]
    return any(ast.unparse(one) in {"pytest.mark.long", "pytest.mark.field"} for one in each)


def _literal(node: ast.expr, path: Path) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise AssertionError(f"{path.name}:{node.lineno}: a requirement is named by a literal string")


def test_every_requirement_in_force_has_a_proof_and_every_proof_names_one() -> None:
    register, claims = in_force(ROOT / "tests/requirements.toml"), proofs(ROOT)
    missing, strangers = unproven(register, claims), unknown(register, claims)
    assert not missing, f"no test names: {', '.join(missing)}"
    assert not strangers, f"not in tests/requirements.toml: {', '.join(strangers)}"


def test_every_requirement_is_a_sentence_in_its_group() -> None:
    groups = tomllib.loads((ROOT / "tests/requirements.toml").read_text())
    for group, requirements in groups.items():
        for id_, words in requirements.items():
            assert id_.startswith(f"{group}-")
            assert words.endswith(".")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("tests/deep", "benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_marks_are_found_on_functions_modules_and_parameters(project: Path) -> None:
    (project / "tests/deep/test_it.py").write_text(
        "import pytest\n"
        'pytestmark = [pytest.mark.anyio, pytest.mark.requirement("A-1")]\n'
        '@pytest.mark.requirement("A-2", "A-3")\n'
        "def test(): ...\n"
        'ROWS = [pytest.param(1, marks=pytest.mark.requirement("A-4"))]\n'
    )
    (project / "tests/helper.py").write_text('import pytest\npytest.mark.requirement("H-1")\n')
    assert {proof.id for proof in proofs(project)} == {"A-1", "A-2", "A-3", "A-4"}


@pytest.mark.parametrize("extra", ["long", "field"])
def test_a_test_that_the_ordinary_run_leaves_out_proves_no_requirement(project: Path, extra: str) -> None:
    one = f'import pytest\n@pytest.mark.requirement("A-1")\n@pytest.mark.{extra}\nasync def test(): ...\n'
    whole = f"import pytest\npytestmark = [pytest.mark.anyio, pytest.mark.{extra}]\n"
    (project / "tests/test_one.py").write_text(one)
    (project / "tests/test_whole.py").write_text(whole + '@pytest.mark.requirement("A-2")\ndef test(): ...\n')
    assert unproven({"A-1": "Is long.", "A-2": "Is long, too."}, proofs(project)) == ["A-1", "A-2"]
    assert unknown({"A-1": "Is long."}, proofs(project)) == ["A-2 at tests/test_whole.py:3"]


def test_a_benchmark_alone_proves_no_requirement(project: Path) -> None:
    (project / "benchmarks/speed.py").write_text('REQUIREMENTS = ("A-1",)\n')
    assert unproven({"A-1": "Is measured."}, proofs(project)) == ["A-1"]


def test_a_missing_test_and_an_unknown_id_are_both_found(project: Path) -> None:
    register = {"A-1": "Is proven.", "A-2": "Is not."}
    (project / "tests/test_it.py").write_text(
        'import pytest\n@pytest.mark.requirement("A-1", "A-9")\ndef test(): ...\n'
    )
    claims = proofs(project)
    assert unproven(register, claims) == ["A-2"]
    assert unknown(register, claims) == ["A-9 at tests/test_it.py:2"]


def test_an_id_that_is_not_written_out_is_refused(project: Path) -> None:
    (project / "tests/test_it.py").write_text(
        "import pytest\nID = 'A-1'\n@pytest.mark.requirement(ID)\ndef test(): ...\n"
    )
    with pytest.raises(AssertionError, match=r"test_it\.py:3: .*literal"):
        proofs(project)
