"""``holdfast trust``: trust a project's own mcp.json, and the question that other commands ask about it.

A file that the search finds can name commands and send variables to addresses, so it is used only after the user
trusted its content. The question shows what the file would do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.output import data_console, print_json, side_console
from holdfast.config import Config, TrustStore, find_config, load_config, parse_config, read_config, summarize
from holdfast.core import Redactor, mask_url, plain
from holdfast.errors import HoldfastError, UntrustedConfig

__all__ = ["app", "load_trusted", "with_trust"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

JSON_VERSION = 1

LONGEST_TEXT = 200
"""Characters of a command or an address that the question shows."""

_T = TypeVar("_T")


@app.command()
def trust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The project's mcp.json [default: the one found from here]")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Trust the file no longer")] = False,
    list_files: Annotated[bool, typer.Option("--list", help="List the trusted files")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Trust the content of a project's own mcp.json, so that the search may use it.

    A file that is named with --config or $HOLDFAST_CONFIG needs no trust. A changed file needs it again.
    """
    store = TrustStore(os.environ)
    if list_files:
        _list(store, as_json=as_json)
        return
    path = (file if file is not None else find_config(None, environ=os.environ, cwd=Path.cwd())).absolute()
    if remove:
        done = _written(store, lambda: store.forget(path))
    else:
        data = read_config(path, found=True)
        parse_config(data, file=path, environ={})
        done = _written(store, lambda: store.trust(path, data)) is None
        if not as_json:
            _show(data_console(), path, data)
    if as_json:
        print_json({"version": JSON_VERSION, "file": str(path), "trusted": not remove, "changed": bool(done)})
    elif remove:
        side_console().print(f"{path} is {'no longer' if done else 'not'} trusted", soft_wrap=True)
    else:
        side_console().print(f"{path} is trusted until its content changes", soft_wrap=True)


def load_trusted(config: Path | None) -> Config:
    """The configuration to use. On a terminal, the user is asked about a found project file that is not trusted."""
    return with_trust(lambda: load_config(config))


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
        store = TrustStore(os.environ)
        file, data = exc.file, exc.data
        _written(store, lambda: store.trust(file, data))
    return read()


def _written(store: TrustStore, change: Callable[[], _T]) -> _T:
    try:
        return change()
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        raise HoldfastError(
            f"{store.file} cannot be written: {why}", hint=f"check the permissions of {store.file.parent}"
        ) from exc


def _show(console: Console, file: Path, data: bytes) -> None:
    """What the file would do. Its texts are quoted data: cleaned, masked and cut."""
    console.print(Text(f"{file} defines these servers:"), soft_wrap=True)
    for server in summarize(data):
        console.print(Text(f"  {_clean(server.name)}", style="bold"), soft_wrap=True)
        for label, text in _facts(server.command, server.address, server.env_file, server.variables):
            console.print(Text(f"    {label:<9}{text}"), soft_wrap=True)


def _facts(
    command: tuple[str, ...], address: str, env_file: str, variables: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    if command:
        yield "runs", _clean(" ".join(command))
    if address:
        yield "contacts", _clean(mask_url(address))
    if env_file:
        yield "reads", _clean(env_file)
    if variables:
        yield "uses", _clean(", ".join(f"${name}" for name in variables))


def _clean(text: str) -> str:
    """One line of a foreign text."""
    line = " ".join(plain(Redactor().mask(text[: 4 * LONGEST_TEXT])).split())
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


def _list(store: TrustStore, *, as_json: bool) -> None:
    files = sorted(store.files())
    if as_json:
        print_json({"version": JSON_VERSION, "files": files})
        return
    for file in files:
        data_console().print(Text(file), soft_wrap=True)
    if not files:
        side_console().print("no file is trusted")
