"""A client's file, JSON or TOML: its servers, and the same text with other servers in it.

Every edit is checked: the new text must say exactly what it should, else it is refused and nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.config.clients import jsonedit, tomledit
from holdfast.config.find import read_config
from holdfast.config.jsonc import parse
from holdfast.errors import ConfigError, HoldfastError, Problem
from holdfast.files import PRIVATE_FILE, private_folder, replace_file

__all__ = ["ClientFile", "write_whole"]


class ClientFile:
    """One file as it was read."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.text = text if text.strip() or file.suffix == ".toml" else "{}\n"
        self._value = _parsed(file, self.text)

    @classmethod
    def read(cls, file: Path) -> ClientFile:
        """Read it; raises ``ConfigError`` with the place if it cannot be read."""
        data = read_config(file)
        try:
            return cls(file, data.decode("utf-8"))
        except UnicodeDecodeError as exc:
            problem = Problem(message="this is not UTF-8 text", hint="save the file as UTF-8", file=file)
            raise ConfigError([problem]) from exc

    def servers(self, path: tuple[str, ...]) -> dict[str, Any]:
        """The servers at a place in it, by their names."""
        found: Any = self._value
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return dict(found) if isinstance(found, dict) else {}

    def edited(
        self, path: tuple[str, ...], *, without: Iterable[str] = (), with_: Mapping[str, object] | None = None
    ) -> str:
        """The text without some servers and with others; raises if that cannot be done cleanly."""
        without, with_ = tuple(without), with_ or {}
        text = self._edit_toml(path, without, with_) if self._is_toml else self._edit_json(path, without, with_)
        expected = {key: value for key, value in self.servers(path).items() if key not in without} | dict(with_)
        self._check(text, path, expected)
        return text

    def put_back(self, path: tuple[str, ...], before: ClientFile, names: Iterable[str], *, hub: str) -> str:
        """The text with some servers as they were in ``before``, and without the hub."""
        old, here = before.servers(path), self.servers(path)
        back = {name: old[name] for name in names if name in old and name not in here}
        if hub in old:
            back[hub] = old[hub]
        if not self._is_toml:
            return self.edited(path, without=[hub], with_=back)
        text = self.edited(path, without=[hub])
        for name in back:
            text = text.rstrip("\n") + "\n\n" + tomledit.table_text(before.text, (*path, name))
        self._check(text, path, {key: value for key, value in here.items() if key != hub} | back)
        return text

    @property
    def _is_toml(self) -> bool:
        return self.file.suffix == ".toml"

    def _edit_json(self, path: tuple[str, ...], without: Iterable[str], with_: Mapping[str, object]) -> str:
        text = self.text
        for name in without:
            text = jsonedit.remove_member(text, path, name)
        for name, value in with_.items():
            text = jsonedit.set_member(text, path, name, value)
        return text

    def _edit_toml(self, path: tuple[str, ...], without: Iterable[str], with_: Mapping[str, object]) -> str:
        text = self.text
        for name in (*without, *with_):
            text = tomledit.remove_table(text, (*path, name))
        for name, value in with_.items():
            text = tomledit.add_table(text, (*path, name), value if isinstance(value, Mapping) else {})
        return text

    def _check(self, text: str, path: tuple[str, ...], expected: Mapping[str, object]) -> None:
        with contextlib.suppress(ConfigError):
            edited = ClientFile(self.file, text)
            if edited.servers(path) == expected and _without(edited._value, path) == _without(self._value, path):
                return
        raise HoldfastError(
            f"{self.file} is written in a way that cannot be edited safely: nothing was changed",
            hint=f"give each server a section of its own, [{'.'.join(path)}.NAME], or edit the file by hand",
        )


def write_whole(file: Path, text: str, *, mode: int = PRIVATE_FILE) -> None:
    """Replace a file in one step. Links are followed, and a file that exists keeps its mode."""
    target = Path(os.path.realpath(file))
    try:
        private_folder(target.parent)
        replace_file(target, text, mode=mode, keep_mode=True)
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        raise HoldfastError(
            f"{target} cannot be written: {why}", hint=f"look at {target.parent}: is it yours?"
        ) from exc


def _parsed(file: Path, text: str) -> Any:
    if file.suffix != ".toml":
        return _object(file, parse(text, file=file).value)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError([Problem(message=f"this is not TOML: {_where(exc)}", file=file)]) from exc


def _object(file: Path, value: object) -> object:
    if not isinstance(value, dict):
        raise ConfigError([Problem(message="the file must hold an object", hint="write { … }", file=file)])
    return value


def _where(exc: tomllib.TOMLDecodeError) -> str:
    """The parser's words up to the place; what follows may quote the file."""
    found = str(exc)
    return found[found.rfind("(at ") :].strip("()") if "(at " in found else "it cannot be read"


def _without(value: Any, path: tuple[str, ...]) -> Any:
    """The whole without what stands at ``path``; an object on the way that is then empty is as good as none."""
    if not isinstance(value, dict):
        return value
    rest = {key: item for key, item in value.items() if key != path[0]}
    if len(path) > 1:
        inner = _without(value.get(path[0]) or {}, path[1:])
        return {**rest, path[0]: inner} if inner else rest
    return rest
