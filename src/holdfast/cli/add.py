"""``holdfast add``: add a server to an mcp.json, and try it at once."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import anyio
import typer
from rich.text import Text

from holdfast.cli.config_edit import ConfigEdit, File, file_to_edit, plan_edit, undo_last_edit
from holdfast.cli.output import counted, data_console, print_json, side_console, working
from holdfast.config import Config, looks_secret, parse_config
from holdfast.core import Redactor, command_line, plain
from holdfast.errors import ConfigError, UsageError
from holdfast.files import private_folder, replace_file

if TYPE_CHECKING:
    from holdfast.types import MCPServerLoadOutcome

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


@dataclass
class _Secrets:
    """The secrets of a new server: the file gets a reference to a variable, never the value."""

    server: str
    values: dict[str, str] = field(default_factory=dict, repr=False)
    """The values that the user gave, by variable."""
    stored: Path | None = None
    """The file that holds them; None if they are used for the first try only."""

    def reference(self, variable: str, value: str | None) -> str:
        """``${env:VARIABLE}``; remembers the value."""
        if not _VARIABLE.fullmatch(variable):
            raise UsageError(f"`{variable}` is not the name of a variable", hint="for example --env API_KEY")
        if value is None and variable not in os.environ and sys.stdin.isatty():
            value = getpass.getpass(f"{variable}: ")
        if value:
            self.values[variable] = value
        return f"${{env:{variable}}}"

    def in_header(self, name: str, value: str) -> str:
        """The value of a header, with its secret part replaced."""
        if "${" in value or not looks_secret(name):
            return value
        scheme, space, secret = value.rpartition(" ")
        variable = re.sub(r"[^A-Za-z0-9]+", "_", f"{self.server}_token").upper()
        return f"{scheme}{space}{self.reference(variable if variable[0].isalpha() else f'_{variable}', secret)}"


@app.command()
def add(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name of the new server")] = None,
    target: Annotated[
        list[str] | None, typer.Argument(metavar="URL | -- COMMAND", help="Its URL, or its command and arguments")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable of the command; may be repeated"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header for the URL; may be repeated"),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--type", metavar="http|sse", help="The transport of the URL [default: http]")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option("--cwd", metavar="FOLDER", help="The working folder of the command")
    ] = None,
    file: File = None,
    store_secrets: Annotated[
        bool, typer.Option("--store-secrets", help="Store the secrets of a command in a file that only you can read")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a server of the same name")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Try the server at once")] = True,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last `add` or `remove`")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change, and change nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Add a server to your mcp.json and try it at once. A running hub picks it up by itself.

    holdfast add files -- npx -y @modelcontextprotocol/server-filesystem .

    holdfast add github https://api.example.com/mcp --header "Authorization: Bearer $TOKEN"

    Comments and formatting of the file stay. Secrets are not written: the file gets ${env:NAME}, and you get
    the line to export. --store-secrets stores them in a private file beside it instead. --env NAME without a
    value asks for it on a terminal.

    Exit code 0: the server is added and works. 1: it is added and does not work yet. 2: nothing was changed.
    """
    chosen = file_to_edit(file)
    if undo:
        names = undo_last_edit(chosen)
        _print_undone(names, chosen, as_json=as_json)
        return
    if name is None or not target:
        hint = f"{command_line('add')} NAME URL, or {command_line('add')} NAME -- COMMAND"
        raise UsageError("name the server, and its URL or command", hint=hint)
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` is not a name for a server", hint="use letters, digits, `.`, `_` and `-`")
    secrets = _Secrets(name)
    definition = _definition(target, env or [], header or [], kind, cwd, secrets)
    stored = _stored(chosen, name, definition, secrets) if store_secrets else None
    edit = plan_edit(chosen, add={name: definition}, replace=replace)
    if stored is not None and not dry_run:
        private_folder(stored.parent)
        replace_file(stored, "".join(f"{key}={json.dumps(value)}\n" for key, value in secrets.values.items()))
    config = _checked(edit, name, secrets)
    if not dry_run:
        edit.perform()
    try:
        outcome = anyio.run(_try, config, name) if check and not dry_run else None
    except KeyboardInterrupt:
        _print_interrupted(edit, name)
        raise
    if as_json:
        print_json(_as_data(edit, name, definition, secrets, outcome, done=not dry_run))
    else:
        _show(edit, name, secrets, outcome, done=not dry_run)
    raise typer.Exit(0 if outcome is None or outcome.status == "available" else 1)


def _definition(
    target: Sequence[str],
    env: Sequence[str],
    header: Sequence[str],
    kind: str | None,
    cwd: Path | None,
    secrets: _Secrets,
) -> dict[str, Any]:
    if len(target) == 1 and urlsplit(target[0]).scheme in ("http", "https"):
        if env or cwd:
            raise UsageError("--env and --cwd are for a command, not for a URL", hint="use --header for a URL")
        if kind not in (None, "http", "sse"):
            raise UsageError(f"--type is http or sse, not `{kind}`")
        headers = dict(_header(one, secrets) for one in header)
        return {"type": kind or "http", "url": target[0], **({"headers": headers} if headers else {})}
    if header or kind:
        raise UsageError("--header and --type are for a URL, not for a command", hint="use --env for a command")
    command, *args = target
    variables = dict(_variable(one, secrets) for one in env)
    return {
        "command": command,
        **({"args": args} if args else {}),
        **({"env": variables} if variables else {}),
        **({"cwd": str(cwd.absolute())} if cwd else {}),
    }


def _stored(file: Path, name: str, definition: dict[str, Any], secrets: _Secrets) -> Path:
    """Let the command read its secrets from a file beside the configuration; returns that file."""
    if "command" not in definition:
        hint = "use ${env:NAME} in --header, and set NAME where the hub runs"
        raise UsageError("--store-secrets is for a command: headers have no file", hint=hint)
    if not secrets.values:
        raise UsageError("there is no secret to store", hint="give one: --env API_KEY, or --env API_KEY=value")
    stored = file.parent / "secrets" / f"{name}.env"
    definition["env"] = {key: value for key, value in definition["env"].items() if key not in secrets.values}
    if not definition["env"]:
        del definition["env"]
    definition["envFile"] = str(stored)
    secrets.stored = stored
    return stored


def _variable(text: str, secrets: _Secrets) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        return name, secrets.reference(name, None)
    if "${" in value or not looks_secret(name):
        return name, value
    return name, secrets.reference(name, value)


def _header(text: str, secrets: _Secrets) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"`{plain(name)}` is not a header", hint='for example --header "X-Key: ${env:API_KEY}"')
    return name.strip(), secrets.in_header(name.strip(), value.strip())


def _checked(edit: ConfigEdit, name: str, secrets: _Secrets) -> Config:
    """The configuration after the edit; an error if the new server is not usable. Unset variables are no error."""
    environ = {**os.environ, **secrets.values}
    for variable in re.findall(r"\$\{env:(\w+)\}", edit.after):
        environ.setdefault(variable, "")
    config = parse_config(edit.after, file=edit.file, environ=environ)
    server = config.servers[name]
    if server.problems:
        raise ConfigError(server.problems)
    return config


async def _try(config: Config, name: str) -> MCPServerLoadOutcome:
    from holdfast.hub import Loader  # noqa: PLC0415 - slow to import; wrong usage must not wait for it

    with working(f"connecting to {name}"):
        return (await Loader(config).load([name])).outcomes[0]


def _show(edit: ConfigEdit, name: str, secrets: _Secrets, outcome: MCPServerLoadOutcome | None, *, done: bool) -> None:
    out, side = data_console(), side_console()
    if not done:
        mask = Redactor(secrets.values.values()).mask
        for line in edit.diff():
            out.print(Text(mask(plain(line)), style=_DIFF.get(line[:1], "")), soft_wrap=True)
        side.print("Dry run: nothing was changed.")
        return
    out.print(f"added {name} to {edit.file}", soft_wrap=True)
    if outcome is not None and outcome.status == "available":
        out.print(f"It works: {counted(len(outcome.tools), 'tool')}.")
    elif outcome is not None:
        side.print(Text(outcome.message), soft_wrap=True)
        if outcome.hint:
            side.print(Text.assemble(("hint: ", "bold cyan"), outcome.hint), soft_wrap=True)
    if secrets.stored is not None:
        out.print(f"stored {', '.join(secrets.values)} in {secrets.stored}", soft_wrap=True)
    for variable in _to_export(secrets):
        side.print(f"Set this variable where the hub runs: export {variable}='your value'", soft_wrap=True)
    side.print(f"To undo this: {command_line('add', '--undo', '--file', str(edit.file))}", soft_wrap=True)


def _print_interrupted(edit: ConfigEdit, name: str) -> None:
    """Ctrl-C ends the try alone: the server was written before it."""
    side = side_console()
    side.print(f"Interrupted: {name} was added to {edit.file}, and was not tried to the end.", soft_wrap=True)
    side.print(
        f"To try it again: {command_line('check', '--config', str(edit.file), '--require', name)}", soft_wrap=True
    )
    side.print(f"To undo this: {command_line('add', '--undo', '--file', str(edit.file))}", soft_wrap=True)


def _to_export(secrets: _Secrets) -> list[str]:
    if secrets.stored is not None:
        return []
    return [name for name in secrets.values if os.environ.get(name) != secrets.values[name]]


def _as_data(
    edit: ConfigEdit,
    name: str,
    definition: Mapping[str, Any],
    secrets: _Secrets,
    outcome: MCPServerLoadOutcome | None,
    *,
    done: bool,
) -> dict[str, Any]:
    tried = None if outcome is None else {"status": outcome.status, "error": outcome.error, "tools": len(outcome.tools)}
    return {
        "file": str(edit.file),
        "written": done,
        "server": name,
        "definition": dict(definition),
        "needs": _to_export(secrets),
        "check": tried,
    }


def _print_undone(names: Sequence[str], file: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "undone": list(names)})
    else:
        data_console().print(f"undone in {file}: {', '.join(names)}", soft_wrap=True)
