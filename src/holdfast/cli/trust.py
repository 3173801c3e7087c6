"""``holdfast trust``: trust a project's own mcp.json, and the question that other commands ask about it.

A file that the search finds can name commands and send variables to addresses, so it is used only after the user
trusted its content. The question shows what the file would do.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

import holdfast.config
import holdfast.serve
from holdfast.cli.command_options import AsJson
from holdfast.cli.output import data_console, print_json, print_line, print_note, side_console
from holdfast.core import INVISIBLE, MASK, Redactor, mask_url
from holdfast.errors import UntrustedConfig

if TYPE_CHECKING:
    from holdfast.config import Config, TrustStore

__all__ = ["load_servers", "load_trusted", "trust", "with_trust"]

_T = TypeVar("_T")


def trust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The project's mcp.json [default: the one found from here]")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Trust the file no longer")] = False,
    list_files: Annotated[bool, typer.Option("--list", help="List the trusted files")] = False,
    as_json: AsJson = False,
) -> None:
    """Trust the content of a project's own mcp.json, so that the search may use it.

    A file that is named with --config or $HOLDFAST_CONFIG needs no trust. A changed file needs it again.
    """
    store = holdfast.config.TrustStore(os.environ)
    if list_files:
        _list(store, as_json=as_json)
        return
    path = (
        file if file is not None else holdfast.config.find_config(None, environ=os.environ, cwd=Path.cwd())
    ).absolute()
    if remove:
        done = store.forget(path)
    else:
        data = holdfast.config.read_config(path, found=True)
        holdfast.config.parse_config(data, file=path, environ={})
        if not as_json:
            _show(data_console(), path, data)
        store.trust(path, data)
        done = True
    if as_json:
        print_json({"file": str(path), "trusted": not remove, "changed": bool(done)})
    elif remove:
        print_note(f"{path} is {'no longer' if done else 'not'} trusted")
    else:
        print_note(f"{path} is trusted until its content changes")


def load_trusted(config: Path | None) -> Config:
    """The configuration to use. On a terminal, the user is asked about a found project file that is not trusted."""
    return with_trust(lambda: holdfast.config.load_config(config))


def load_servers(config: Path | None) -> Config:
    """The same for a command that starts servers: an entry that is the hub itself is left out, and named."""
    return holdfast.serve.without_itself(holdfast.serve.ServeConfig(), load_trusted(config))


def with_trust(read: Callable[[], _T]) -> _T:
    """Run ``read``; if it finds an untrusted file, ask the user on a terminal, and run it again after a yes."""
    try:
        return read()
    except UntrustedConfig as exc:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        _show(side_console(), exc.file, exc.data)
        if not typer.confirm("Trust this file?", err=True):
            raise
        holdfast.config.TrustStore(os.environ).trust(exc.file, exc.data)
    return read()


def _show(console: Console, file: Path, data: bytes) -> None:
    """All that the file decides, uncut. Its texts are data: what cannot be seen is written by its number."""
    servers = holdfast.config.servers_in(data)
    console.print(Text(f"{_visible(str(file))} defines these servers:"), soft_wrap=True)
    for name, definition in servers:
        console.print(Text(f"  {_visible(name)}", style="bold"), soft_wrap=True)
        for fact in _facts(definition):
            _print_fact(console, *fact)
    settings = holdfast.config.settings_in(data)
    if settings:
        console.print(Text("  settings of Holdfast", style="bold"), soft_wrap=True)
    for key, value in settings.items():
        _print_fact(console, "sets", f"{_visible(key)}={_shown(_json(value))}")
    steered = [
        name for name, raw in servers if any(holdfast.config.steers(variable) for variable, _ in _pairs(raw.get("env")))
    ]
    if steered:  # once more at the end: the list may be longer than the screen
        named = ", ".join(map(_visible, steered))
        console.print(Text(f"Variables change what runs: {named}", style="bold yellow"), soft_wrap=True)


def _print_fact(console: Console, label: str, text: str, warning: str = "") -> None:
    console.print(Text.assemble(f"    {label:<9}{text}", (warning, "bold yellow")), soft_wrap=True)


_CHANGES_WHAT_RUNS = "  <- changes what runs"


_SHOWN_APART = frozenset(
    {"command", "args", "cwd", "env", "envFile", "url", "serverUrl", "httpUrl", "headers", "oauth"}
)


def _facts(raw: Mapping[str, Any]) -> Iterator[tuple[str, str] | tuple[str, str, str]]:
    """What a definition decides: what runs, what is contacted, and what is sent to it."""
    args = raw.get("args")
    words = args if isinstance(args, list) else [] if args is None else [args]
    if raw.get("command") or words:
        yield "runs", " ".join(_words([_text(raw.get("command")), *map(_text, words)]))
    if raw.get("cwd"):
        yield "in", _shown(_text(raw["cwd"]))
    for name, value in _pairs(raw.get("env")):
        steered = holdfast.config.steers(name)
        shown = _shown(value) if steered or not _is_secret(name, value) else MASK
        yield "sets", f"{_visible(name)}={shown}", _CHANGES_WHAT_RUNS if steered else ""
    if raw.get("envFile"):
        yield "reads", _shown(_text(raw["envFile"]))
    for key in ("url", "serverUrl", "httpUrl"):
        if raw.get(key):
            yield "contacts", _address(_text(raw[key]))
    for name, value in _pairs(raw.get("headers")):
        yield "sends", f"{_visible(name)}: {_shown(value) if '${' in value else MASK}"
    for name, value in _pairs(raw.get("oauth")):
        shown = _address(value) if "://" in value else MASK if _is_secret(name, value) else _shown(value)
        yield "login", f"{_visible(name)}={shown}"
    others = {key: _json(one) for key, one in raw.items() if key not in _SHOWN_APART and one is not None}
    for name, value in others.items():
        yield "also", f"{_visible(name)}={MASK if _is_secret(name, value) else _shown(value)}"
    if variables := holdfast.config.variables_in(raw):
        yield "uses", ", ".join(f"${name}" for name in variables)


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    """The members of an object; what is none is shown as it is."""
    if isinstance(value, Mapping):
        return tuple((str(key), _text(one)) for key, one in value.items())
    return () if value is None else (("", _json(value)),)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _address(url: str) -> str:
    return _visible(mask_url(url) if len(url) < LONGEST_WORD else url)


LONGEST_WORD = 512
"""Characters of a word that may be masked. A longer one is no secret, and may be a program."""

_WORD = re.compile(r"[A-Za-z0-9+/_~%.@=?:#-]+")
"""What may be masked. No character of it ends a command: a mask can hide a value, and nothing that runs."""


def _words(command: Sequence[str]) -> Iterator[str]:
    """A command line, each word of it quoted as a shell would need it."""
    before = ""
    for word in command:
        plain_value = _WORD.fullmatch(word) and not word.startswith("-")
        named = before.startswith("-") and "=" not in before and _is_secret(before, word)
        yield MASK if plain_value and named and len(word) < LONGEST_WORD else _shown(shlex.quote(word))
        before = word


def _shown(text: str) -> str:
    """A text of the file: words that are secrets are masked, what cannot be seen is written by its number."""
    return _visible(_WORD.sub(lambda word: Redactor().mask(word[0]) if len(word[0]) < LONGEST_WORD else word[0], text))


def _is_secret(name: str, value: str) -> bool:
    """Whether a value is a credential by its name. A reference to a variable is none: it says what is sent."""
    return "${" not in value and MASK in Redactor().mask(f'{name.lstrip("-")}="{value[:LONGEST_WORD]}"')


def _visible(text: str) -> str:
    """A text in which nothing hides: no control characters, and none without a shape or a direction of its own."""
    return "".join(
        one if one.isprintable() and not INVISIBLE.match(one) else one.encode("unicode_escape").decode() for one in text
    )


def _list(store: TrustStore, *, as_json: bool) -> None:
    files = sorted(store.files())
    if as_json:
        print_json({"files": files})
        return
    for file in files:
        print_line(file)
    if not files:
        print_note("no file is trusted")
