"""``holdfast add``, ``remove`` and ``list``: the servers of an mcp.json, and edits of it.

An edit is planned, written with a backup, and can be undone. Comments and formatting stay. Later changes by
others stay too when an edit is undone. ``add`` tries the new server at once; ``list`` contacts none. Secrets are
masked.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import typer

import holdfast.config
import holdfast.hub
from holdfast.cli.command_options import AsJson
from holdfast.cli.output import (
    Cell,
    counted,
    data_console,
    page_of,
    print_json,
    print_line,
    print_note,
    print_try,
    working,
)
from holdfast.cli.trust import load_trusted
from holdfast.core import Redactor, command_line, mask_url, plain
from holdfast.errors import ConfigError, HoldfastError, UnknownServer, UsageError
from holdfast.files import private_folder, replace_file

if TYPE_CHECKING:
    from holdfast.auth import Logins
    from holdfast.config import Config, FileEdit, ServerSpec
    from holdfast.types import MCPServerLoadOutcome

__all__ = ["add", "list_servers", "remove", "try_server"]

File: TypeAlias = Annotated[
    Path | None, typer.Option("--file", "--config", metavar="FILE", help="The mcp.json to edit [default: your own]")
]

_EDITOR = "holdfast"
"""The name under which backups of these edits are stored."""


def plan_edit(
    file: Path, *, add: Mapping[str, object] | None = None, remove: Sequence[str] = (), replace: bool = False
) -> FileEdit:
    """Plan a change; raises if a name exists already, or does not exist."""
    current = holdfast.config.ClientFile.read_or_new(file)
    group = current.own_group
    there = current.servers(group)
    for name in add or {}:
        if name in there and not replace:
            raise UsageError(f"{file} has a server named `{name}` already", hint="use another name, or --replace")
    for name in remove:
        if name not in there:
            raise UnknownServer.among(name, there)
    return holdfast.config.FileEdit(
        owner=_EDITOR,
        place=holdfast.config.ClientLocation(file=file, path=group, scope="user"),
        before=current.text,
        after=current.edited(group, without=remove, with_=add),
        moved=(*(add or {}), *remove),
        is_new=not file.exists(),
    )


def undo_last_edit(file: Path, *, as_json: bool) -> None:
    """Undo the last edit of a file, and name its servers. Later changes by others are never lost."""
    backups = holdfast.config.Backups(os.environ)
    for group in (("mcpServers",), ("servers",)):
        backup = backups.latest(_EDITOR, holdfast.config.ClientLocation(file=file, path=group, scope="user"))
        if backup is None:
            continue
        now, names = holdfast.config.ClientFile.read(file), backup.moved
        backups.restore(backup, backup.before if backup.is_untouched(now.text) else now.put_back(backup, names))
        if as_json:
            print_json({"file": str(file), "undone": list(names)})
        else:
            print_line(f"undone in {file}: {', '.join(names)}")
        return
    raise HoldfastError(f"there is no edit of {file} to undo", hint="only `add` and `remove` can be undone")


# Add

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


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
        if "${" in value or not holdfast.config.looks_secret(name):
            return value
        scheme, space, secret = value.rpartition(" ")
        variable = re.sub(r"[^A-Za-z0-9]+", "_", f"{self.server}_token").upper()
        return f"{scheme}{space}{self.reference(variable if variable[0].isalpha() else f'_{variable}', secret)}"


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
        Literal["http", "sse"] | None, typer.Option("--type", help="The transport of the URL [default: http]")
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
    as_json: AsJson = False,
) -> None:
    """Add a server to your mcp.json and try it at once. A running hub picks it up by itself.

    holdfast add files -- npx -y @modelcontextprotocol/server-filesystem .

    holdfast add github https://api.example.com/mcp --header "Authorization: Bearer $TOKEN"

    Comments and formatting of the file stay. Secrets are not written: the file gets ${env:NAME}, and you get
    the line to export. --store-secrets stores them in a private file beside it instead. --env NAME without a
    value asks for it on a terminal.

    Exit code 0: the server is added and works. 1: it is added and does not work yet. 2: nothing was changed.
    """
    chosen = holdfast.config.config_to_edit(file, os.environ)
    if undo:
        undo_last_edit(chosen, as_json=as_json)
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
    if stored is not None:
        private_folder(stored.parent)
        replace_file(stored, "".join(f"{key}={json.dumps(value)}\n" for key, value in secrets.values.items()))
    config = _checked(edit, name, secrets)
    edit.perform(holdfast.config.Backups(os.environ))
    if not as_json:  # before the try, so that Ctrl-C leaves no doubt
        print_line(f"added {name} to {edit.place.file}")
        print_note(f"To undo this: {command_line('add', '--undo', '--file', str(edit.place.file))}")
    outcome = try_server(config, name) if check else None
    if as_json:
        print_json(_added_data(edit, name, definition, secrets, outcome))
    else:
        _show_added(secrets, outcome)
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
    if "${" in value or not holdfast.config.looks_secret(name):
        return name, value
    return name, secrets.reference(name, value)


def _header(text: str, secrets: _Secrets) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"`{plain(name)}` is not a header", hint='for example --header "X-Key: ${env:API_KEY}"')
    return name.strip(), secrets.in_header(name.strip(), value.strip())


def _checked(edit: FileEdit, name: str, secrets: _Secrets) -> Config:
    """The configuration after the edit; an error if the new server is not usable. Unset variables are no error."""
    environ = {**os.environ, **secrets.values}
    for variable in re.findall(r"\$\{env:(\w+)\}", edit.after):
        environ.setdefault(variable, "")
    config = holdfast.config.parse_config(edit.after, file=edit.place.file, environ=environ)
    server = config.servers[name]
    if server.problems:
        raise ConfigError(server.problems)
    return config


def try_server(config: Config, name: str, logins: Logins | None = None) -> MCPServerLoadOutcome:
    """Connect once."""
    import anyio  # noqa: PLC0415 - of `add` alone: the other commands contact no server

    with working(f"connecting to {name}"):
        return anyio.run(holdfast.hub.Loader(config, logins=logins).load, [name]).outcomes[0]


def _show_added(secrets: _Secrets, outcome: MCPServerLoadOutcome | None) -> None:
    if outcome is not None:
        print_try(outcome)
    if secrets.stored is not None:
        print_line(f"stored {', '.join(secrets.values)} in {secrets.stored}")
    for variable in _to_export(secrets):
        print_note(f"Set this variable where the hub runs: export {variable}='your value'")


def _to_export(secrets: _Secrets) -> list[str]:
    if secrets.stored is not None:
        return []
    return [name for name in secrets.values if os.environ.get(name) != secrets.values[name]]


def _added_data(
    edit: FileEdit,
    name: str,
    definition: Mapping[str, Any],
    secrets: _Secrets,
    outcome: MCPServerLoadOutcome | None,
) -> dict[str, Any]:
    tried = None if outcome is None else {"status": outcome.status, "error": outcome.error, "tools": len(outcome.tools)}
    return {
        "file": str(edit.place.file),
        "written": True,
        "server": name,
        "definition": dict(definition),
        "needs": _to_export(secrets),
        "check": tried,
    }


# Remove


def remove(
    names: Annotated[list[str] | None, typer.Argument(metavar="SERVER", help="The servers to remove")] = None,
    file: File = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last `add` or `remove`")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove servers from your mcp.json. A running hub closes them by itself.

    Comments and formatting of the rest of the file stay. `holdfast disable` keeps a server in the file.

    Exit code 0: removed. 1: the file has no such server.
    """
    chosen = holdfast.config.config_to_edit(file, os.environ)
    if undo:
        undo_last_edit(chosen, as_json=as_json)
        return
    if not names:
        raise UsageError("name the servers to remove", hint=f"`{command_line('list')}` shows them")
    edit = plan_edit(chosen, remove=list(dict.fromkeys(names)))
    edit.perform(holdfast.config.Backups(os.environ))
    if as_json:
        print_json({"file": str(chosen), "written": True, "removed": list(edit.moved)})
        return
    print_line(plain(f"removed {', '.join(edit.moved)} from {chosen}"))
    print_note(f"To undo this: {command_line('remove', '--undo', '--file', str(chosen))}")


# List


def list_servers(
    config: Annotated[
        Path | None, typer.Option("--config", "--file", metavar="FILE", help="The mcp.json to use")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the servers of an mcp.json. `holdfast status` shows those of a running hub.

    Exit code 0: every definition is usable. 1: at least one is not.
    """
    found = load_trusted(config)
    rows = [_row(server) for server in found.servers.values()]
    if as_json:
        print_json({"file": str(found.source), "servers": rows})
    else:
        for line in page_of(data_console()).table([_cells(row) for row in rows]):
            print_line(line)
        count = f"{counted(len(rows), 'server')} in {found.source}"
        print_note(count if rows else f"{count}; to add one: {command_line('add')}")
    raise typer.Exit(1 if any(row["state"] == "not usable" for row in rows) else 0)


def _row(server: ServerSpec) -> dict[str, Any]:
    if server.problems:
        return {
            "id": server.id,
            "transport": None,
            "target": None,
            "state": "not usable",
            "problem": str(server.problems[0]),
        }
    redactor = Redactor(server.secrets)
    target = mask_url(server.url) if server.url else " ".join([server.command, *server.args])
    return {
        "id": server.id,
        "transport": server.transport,
        "target": redactor.mask(target),
        "state": "enabled" if server.enabled else "disabled",
        "problem": None,
    }


def _cells(row: dict[str, Any]) -> list[Cell]:
    styles = {"enabled": "", "disabled": "dim", "not usable": "red"}
    return [
        Cell(text=plain(row["id"]), style="bold"),
        Cell(text=row["transport"] or "-"),
        Cell(text=row["state"], style=styles[row["state"]]),
        Cell(text=plain(row["target"] or row["problem"] or "")),
    ]
