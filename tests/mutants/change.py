"""Where a source can be changed by a small slip, and the source with that slip.

The slips are those of people: a comparison turned or off by one, ``and`` for ``or``, a lost ``not``, a guard that is
always or never true, a forgotten statement, a wrong constant, a forgotten result. Left alone is what no behaviour
depends on, or what only names a size: annotations, docstrings, log lines, texts, ``repr``, constants of modules. So is
``raise AssertionError``, which says that a line cannot be reached.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Site", "changed", "sites_of"]

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_UNSEEN_FUNCTIONS: Final = ("__repr__", "__str__")
_LOGS: Final = ("log", "logger", "warnings")


@dataclass(frozen=True)
class Site:
    """One slip: the characters from ``start`` to ``end`` become ``new``."""

    line: int
    start: int
    end: int
    new: str
    what: str


def changed(source: str, site: Site) -> str:
    """The source with the slip; every other line keeps its number."""
    old = source[site.start : site.end]
    missing = "\n" * (old.count("\n") - site.new.count("\n"))
    # Inside of brackets a line may end anywhere, and a statement ends with its line.
    return source[: site.start] + site.new + missing + source[site.end :]


def sites_of(source: str) -> list[Site]:
    """Every slip that can be made, in the order of the source."""
    tree = ast.parse(source)
    at = _Offsets(source)
    found: dict[tuple[int, int, str], Site] = {}
    for node, new in _slips(tree.body, inside=False):
        start, end = at.span(node)
        text = ast.unparse(new) if new is not None else "pass"
        if isinstance(node, ast.expr):
            text = f"({text})"
        what = f"{_short(source[start:end])} -> {_short(text)}"
        site = Site(line=node.lineno, start=start, end=end, new=text, what=what)
        found.setdefault((start, end, text), site)
    return sorted(found.values(), key=lambda one: one.start)


def _slips(body: list[ast.stmt], *, inside: bool) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST | None]]:
    """Each node with what it becomes; None: the statement is forgotten."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name in _UNSEEN_FUNCTIONS:
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _slips(statement.body, inside=True)
                continue
            case ast.ClassDef():
                yield from _slips(statement.body, inside=inside)
                continue
            case _ if not inside or _is_unseen(statement):
                continue
        yield from _of_statement(statement)
        for expression in _own_expressions(statement):
            yield from _of_expression(expression)
        for part in ("body", "orelse", "finalbody"):
            yield from _slips(getattr(statement, part, []), inside=inside)
        for branch in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _slips(branch.body, inside=inside)


def _is_unseen(statement: ast.stmt) -> bool:
    """Docstrings, log lines, asserts for the type checker and imports."""
    if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal | ast.Pass):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        owner = value.func.value
        return isinstance(owner, ast.Name) and owner.id in _LOGS
    return isinstance(value, ast.Constant)


def _of_statement(statement: ast.stmt) -> Iterator[tuple[ast.stmt | ast.expr, ast.AST | None]]:
    match statement:
        case ast.Raise(exc=ast.Call(func=ast.Name(id="AssertionError"))):
            pass
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield statement, None
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield statement, None
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield statement, ast.Return(value=ast.Constant(value=None))
        case ast.Break():
            yield statement, ast.Continue()
        case ast.Continue():
            yield statement, ast.Break()
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
            yield test, ast.Constant(value=False)
            if isinstance(statement, ast.If):
                yield test, ast.Constant(value=True)
        case _:
            pass


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, without those of the statements in it, and without annotations."""
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "returns", "decorator_list", "target", "targets"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.expr):
                yield one
            elif isinstance(one, ast.withitem):
                yield one.context_expr
            elif isinstance(one, ast.match_case) and one.guard is not None:
                yield one.guard


def _of_expression(expression: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in _walked(expression):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=right) if type(operator) in _COMPARED:
                yield node, ast.Compare(left=left, ops=[_COMPARED[type(operator)]()], comparators=right)
            case ast.BoolOp(op=operation, values=values):
                other: ast.boolop = ast.Or() if isinstance(operation, ast.And) else ast.And()
                yield node, ast.BoolOp(op=other, values=values)
                for index in range(len(values)):
                    rest = values[:index] + values[index + 1 :]
                    yield node, rest[0] if len(rest) == 1 else ast.BoolOp(op=operation, values=rest)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, operand
            case ast.BinOp(left=left, op=computed, right=right_side) if type(computed) in _COMPUTED:
                yield node, ast.BinOp(left=left, op=_COMPUTED[type(computed)](), right=right_side)
            case ast.IfExp(body=body, orelse=otherwise):
                yield node, body
                yield node, otherwise
            case ast.Constant(value=bool() as value):
                yield node, ast.Constant(value=not value)
            case ast.Constant(value=int() | float() as number):
                yield node, ast.Constant(value=number + 1)
            case _:
                pass


def _walked(expression: ast.expr) -> Iterator[ast.expr]:
    """The expression and all in it, but for the inside of texts."""
    if isinstance(expression, ast.JoinedStr):
        return
    yield expression
    for child in ast.iter_child_nodes(expression):
        if isinstance(child, ast.keyword):
            yield from _walked(child.value)
        elif isinstance(child, ast.comprehension):
            for one in (child.iter, *child.ifs):
                yield from _walked(one)
        elif isinstance(child, ast.expr):
            yield from _walked(child)


class _Offsets:
    """From the lines and UTF-8 columns of a tree to characters of the source."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:67]}..."
