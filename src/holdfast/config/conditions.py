"""Conditions of access rules: a CEL expression over the arguments of a call (``when``).

What can happen: the rules come from the operator, who is trusted, and the arguments from a caller, who is not. So an
expression is checked once, when the configuration is read: its syntax, its names, its types, and what it may cost.
Arguments are checked each time, before anything is evaluated.

What must never happen:

- A caller makes an evaluation slow: it runs on the event loop and holds the interpreter's lock. One comprehension over
  the arguments is linear, and what it does for each element may be linear again; a second one inside it, or a regular
  expression of the caller's, would have no bound. So these two are refused in the configuration. For the rest ``cost``
  is an upper bound in bytes compared, and ``CallFacts`` has a budget of them for one decision.
- A caller shows the rules other arguments than the server: an object that names a key twice means one thing here and
  may mean another there. Two spellings of one key (``path``, ``Path``) are the same to servers that do not look at
  case. Such arguments cannot be judged, and a number beyond 64 bits cannot either.

Nothing here decides what follows if a condition cannot be evaluated: ``access/policy.py`` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from holdfast.config.fields import InvalidValue

if TYPE_CHECKING:
    from cel_expr_python import cel

__all__ = ["LARGEST_ARGUMENTS", "CallFacts", "Condition", "Unjudged", "each_key_once"]

LARGEST_ARGUMENTS: Final = 64 * 1024
"""Bytes. Larger arguments are not parsed for a condition."""

BUDGET: Final = 2 * 1024 * 1024
"""Bytes that the conditions of one decision may compare: about 20 ms in the worst expressions that were measured."""

LONGEST_CONDITION: Final = 4096
"""Characters. An expression of this length takes 10 ms to compile."""

_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})

_TOKEN = re.compile(
    r"""(?P<text>(?:[bB]?[rR]|[rR][bB])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
        | [bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
      | (?P<comment>//[^\n]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>\S)""",
    re.VERBOSE | re.DOTALL,
)
"""The words of CEL, as far as macros and literals must be told apart."""


class Unjudged(Exception):
    """A condition cannot be evaluated with these arguments; the text says why."""


class Condition:
    """One expression, checked and compiled. It may be evaluated any number of times."""

    __slots__ = ("_program", "has_comprehension", "text")

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_CONDITION:
            raise InvalidValue(f"has more than {LONGEST_CONDITION} characters", hint="split it into several rules")
        self.text = text
        self.has_comprehension = _check_cost(text)
        self._program = _compile(text)

    def holds(self, facts: CallFacts) -> bool:
        """Whether it is true of these arguments; raises ``Unjudged`` if that cannot be said."""
        activation = facts.activation(self)
        try:
            value = self._program.eval(activation).value()
        except (RuntimeError, ValueError, TypeError, OverflowError) as exc:
            raise Unjudged("its condition failed") from exc
        if isinstance(value, bool):
            return value
        raise Unjudged("its condition needs an argument that is missing or of another type")

    def __repr__(self) -> str:
        return f"<Condition {self.text!r}>"


class CallFacts:
    """The arguments of one call, for all conditions of one decision. They are parsed at the first condition."""

    def __init__(self, arguments: bytes | Mapping[str, Any] | None) -> None:
        self._given = arguments
        self._activation: cel.Activation | None = None
        self._size = 0
        self._parts = 0
        self._left = BUDGET

    @property
    def is_too_large(self) -> bool:
        """Whether they are over the bound: then no condition is evaluated at all."""
        return len(self._encoded()) > LARGEST_ARGUMENTS

    def activation(self, condition: Condition) -> cel.Activation:
        """The arguments in the form that expressions use; raises ``Unjudged`` if a condition cannot have them."""
        if self._activation is None:
            self._activation = self._parsed()
        self._left -= self._size * (self._parts if condition.has_comprehension else 1)
        if self._left < 0:
            raise Unjudged("its condition would take too long with so many arguments")
        return self._activation

    def _encoded(self) -> bytes:
        if self._given is None:
            return b"{}"
        if isinstance(self._given, bytes):
            return self._given
        # A program's own mapping is read as its JSON: the server gets that.
        self._given = json.dumps(self._given, default=str).encode()
        return self._given

    def _parsed(self) -> cel.Activation:
        encoded = self._encoded()
        if len(encoded) > LARGEST_ARGUMENTS:
            raise Unjudged(f"its arguments are larger than {LARGEST_ARGUMENTS // 1024} KiB")
        self._size = len(encoded)
        # An upper bound of the elements of all lists and objects.
        self._parts = 1 + encoded.count(b",") + encoded.count(b"[") + encoded.count(b"{")
        try:
            value = json.loads(encoded.decode(), object_pairs_hook=each_key_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as exc:
            raise Unjudged("its arguments are no JSON object with each key once") from exc
        if not isinstance(value, dict):
            raise Unjudged("its arguments are no JSON object")
        return _environment().Activation({"arguments": value})


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members, for a decoder of JSON; raises ``ValueError`` if two readers may differ about it."""
    made = dict(pairs)
    if len({key.casefold() for key in made}) < len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_cost(text: str) -> bool:
    """Refuse what has no bound; return whether there is a comprehension."""
    tokens = [(one.lastgroup, one.group()) for one in _TOKEN.finditer(text) if one.lastgroup != "comment"]
    comprehensions: list[bool] = []  # for each open bracket: whether it is that of a comprehension
    found = False
    for index, (kind, word) in enumerate(tokens):
        before = [one[1] for one in tokens[max(index - 2, 0) : index]]
        if kind == "mark" and word in "([{":
            is_one = word == "(" and len(before) == 2 and before[0] == "." and before[1] in _MACROS
            if is_one and any(comprehensions):
                raise InvalidValue(
                    "has a comprehension inside a comprehension",
                    hint=f"`{before[1]}` of a list for each element of another has no bound; write two rules",
                )
            found = found or is_one
            comprehensions.append(is_one)
            if word == "(" and before[-1:] == ["matches"]:
                _check_pattern(tokens[index + 1 :], is_method=before[:1] == ["."])
        elif kind == "mark" and word in ")]}" and comprehensions:
            comprehensions.pop()
    return found


def _check_pattern(after: list[tuple[str | None, str]], *, is_method: bool) -> None:
    """A regular expression must be written in the rule: a caller's own could take seconds."""
    if not is_method or [kind for kind, _ in after[:1]] != ["text"] or [word for _, word in after[1:2]] != [")"]:
        raise InvalidValue(
            "has `matches` without a literal pattern", hint='write it as in arguments.path.matches("^/srv/")'
        )


@cache
def _environment() -> cel.Env:
    """The names and functions that expressions have: ``arguments``, and the standard ones of CEL."""
    try:
        from cel_expr_python import cel  # noqa: PLC0415 - an extra, needed only where a rule has a condition
    except ImportError as exc:
        raise InvalidValue(
            "needs the extra `cel`, which is not installed", hint="run: pip install 'holdfast-mcp[cel]'"
        ) from exc
    return cel.NewEnv(variables={"arguments": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})


def _compile(text: str) -> cel.Expression:
    environment = _environment()
    try:
        program = environment.compile(text)
    except RuntimeError as exc:
        raise InvalidValue(f"is no valid CEL: {_first_fault(exc)}", hint="the variable is `arguments`") from exc
    kind = program.return_type().name()
    if kind not in ("BOOL", "DYN"):
        raise InvalidValue("must be true or false", hint='write a comparison, as in "arguments.n < 100"')
    return program


def _first_fault(error: RuntimeError) -> str:
    """What the compiler says first: its place in the expression and its words, without the picture under it."""
    line = next(iter(str(error).splitlines()), "")
    said = re.sub(r"^[A-Z_]+: (ERROR: <input>:)?", "", line)
    return said[:200].strip() or "it cannot be read"
