"""The known clients, one row each: where a client keeps its servers, and its entry for the hub."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from holdfast.core import HUB_NAME
from holdfast.errors import UsageError

__all__ = ["CLIENTS", "HUB", "ClientLocation", "ClientPaths", "KnownClient", "client_named"]

HUB = HUB_NAME
"""The name of the hub in a client's file: the names of tools leave room for it."""

Scope: TypeAlias = Literal["user", "project"]


@dataclass(frozen=True, kw_only=True)
class ClientPaths:
    """What the paths of clients depend on: the environment, the project folder, the operating system."""

    environ: Mapping[str, str]
    project: Path
    mac: bool = sys.platform == "darwin"

    @property
    def home(self) -> Path:
        """The user's own folder."""
        return Path(self.environ.get("HOME") or Path.home())

    def fill(self, template: str) -> str:
        """Fill in a path template of the table below."""
        xdg = self.environ.get("XDG_CONFIG_HOME", "")
        config = Path(xdg) if xdg.startswith("/") and not self.mac else self.home / ".config"
        return template.format(
            home=self.home,
            config=config,
            apps=self.home / "Library" / "Application Support" if self.mac else config,
            codex=self.environ.get("CODEX_HOME") or self.home / ".codex",
            project=self.project,
        )


@dataclass(frozen=True, kw_only=True)
class ClientLocation:
    """An object in a client's file that contains servers by name."""

    file: Path
    path: tuple[str, ...]
    scope: Scope


@dataclass(frozen=True, kw_only=True)
class KnownClient:
    """One client. ``http`` is its entry for a server at ``{url}``; None if it can only start programs."""

    id: str
    title: str
    files: tuple[tuple[Scope, str, tuple[str, ...]], ...]
    http: Mapping[str, object] | None
    headers: str = "headers"
    """The key of its HTTP headers."""
    workspace: str = ""
    """How a project's own file names the folder that is open; empty if the client starts programs there anyway."""
    expands: bool = True
    """Whether ``${…}`` in its file is a reference; if not, it is plain text."""
    timeout_unit: Literal["s", "ms"] | None = None
    """The unit of ``timeout`` in its file; None where it is not known, and the number itself tells."""
    tool_search: str = ""
    """What its user should know of its own search over tools, if it has one."""
    stdio: Mapping[str, object] | None = None
    """Its entry for a program, where it has keys of its own: ``{command}``, ``{args}`` and ``{words}`` stand for it."""
    excluded: tuple[str, ...] = ()
    """Where its file lists the servers that its user switched off."""
    never_hidden: Mapping[str, object] = field(default_factory=dict)
    """The setting of a server whose tools that search must not hide, where the tools themselves cannot say it."""

    def places(self, around: ClientPaths, *, scopes: tuple[Scope, ...]) -> tuple[ClientLocation, ...]:
        """Where its servers may be. The files may not exist."""
        return tuple(
            ClientLocation(file=Path(around.fill(file)), path=tuple(map(around.fill, path)), scope=scope)
            for scope, file, path in self.files
            if scope in scopes
        )

    def hub_entry(
        self,
        url: str,
        command: tuple[str, ...],
        *,
        stdio: bool,
        token: str = "",
        find: bool = False,
        scope: Scope = "user",
    ) -> dict[str, object]:
        """Its entry for the hub, with the token that the hub requires.

        With ``find`` the hub lists a few tools that find the others. They are useless if the client hides them. In a
        user's own file the open folder is not named: without an open folder the client would start nothing.
        """
        if self.workspace and scope == "project":
            command = (*command, "--folder", self.workspace)
        shown = self.never_hidden if find else {}
        if self.stdio is not None and (self.http is None or stdio):
            words = {"{command}": command[0], "{args}": list(command[1:]), "{words}": list(command)}
            return {key: words.get(str(value), value) for key, value in self.stdio.items()} | dict(shown)
        if self.http is None or stdio:
            needs_type = self.http is not None and self.http.get("type") == "http" and self.id != "copilot"
            kind = {"type": "stdio"} if needs_type else {}
            return {**kind, "command": command[0], "args": list(command[1:]), **shown}
        entry = {key: url if value == "{url}" else value for key, value in self.http.items()} | dict(shown)
        return {**entry, self.headers: {"Authorization": f"Bearer {token}"}} if token else entry


def client_named(name: str) -> KnownClient:
    """The client of that name."""
    if name not in CLIENTS:
        raise UsageError(f"there is no client `{name}`", hint=f"the clients are {', '.join(CLIENTS)}")
    return CLIENTS[name]


_SERVERS = ("mcpServers",)
_OWN_SEARCH = "it has a search of its own over the tools of servers, so it bears a long list"
_STORAGE = "{apps}/Code/User/globalStorage"

_ROWS = (
    KnownClient(
        id="claude",
        title="Claude Desktop",
        files=(("user", "{apps}/Claude/claude_desktop_config.json", _SERVERS),),
        http=None,
        expands=False,
    ),
    KnownClient(
        id="claude-code",
        title="Claude Code",
        files=(
            ("user", "{home}/.claude.json", _SERVERS),
            ("project", "{home}/.claude.json", ("projects", "{project}", "mcpServers")),
            ("project", "{project}/.mcp.json", _SERVERS),
        ),
        http={"type": "http", "url": "{url}"},
        timeout_unit="ms",
        tool_search=f"{_OWN_SEARCH}; it always shows the few tools of find mode, which say so themselves",
    ),
    KnownClient(
        id="cursor",
        title="Cursor",
        files=(("user", "{home}/.cursor/mcp.json", _SERVERS), ("project", "{project}/.cursor/mcp.json", _SERVERS)),
        http={"url": "{url}"},
        workspace="${workspaceFolder}",
    ),
    KnownClient(
        id="vscode",
        title="VS Code",
        files=(
            ("user", "{apps}/Code/User/mcp.json", ("servers",)),
            ("project", "{project}/.vscode/mcp.json", ("servers",)),
        ),
        http={"type": "http", "url": "{url}"},
        workspace="${workspaceFolder}",
    ),
    KnownClient(
        id="windsurf",
        title="Windsurf",
        files=(("user", "{home}/.codeium/windsurf/mcp_config.json", _SERVERS),),
        http={"serverUrl": "{url}"},
    ),
    KnownClient(
        id="codex",
        title="Codex",
        files=(
            ("user", "{codex}/config.toml", ("mcp_servers",)),
            ("project", "{project}/.codex/config.toml", ("mcp_servers",)),
        ),
        http={"url": "{url}"},
        headers="http_headers",
        expands=False,
    ),
    KnownClient(
        id="gemini",
        title="Gemini CLI",
        files=(
            ("user", "{home}/.gemini/settings.json", _SERVERS),
            ("project", "{project}/.gemini/settings.json", _SERVERS),
        ),
        http={"httpUrl": "{url}"},
        timeout_unit="ms",
        excluded=("mcp", "excluded"),
    ),
    KnownClient(
        id="qwen",
        title="Qwen Code",
        files=(
            ("user", "{home}/.qwen/settings.json", _SERVERS),
            ("project", "{project}/.qwen/settings.json", _SERVERS),
        ),
        http={"httpUrl": "{url}"},
        timeout_unit="ms",
        excluded=("mcp", "excluded"),
    ),
    KnownClient(
        id="opencode",
        title="opencode",
        files=(
            ("user", "{config}/opencode/opencode.json", ("mcp",)),
            ("user", "{config}/opencode/opencode.jsonc", ("mcp",)),
            ("project", "{project}/opencode.json", ("mcp",)),
        ),
        http={"type": "remote", "url": "{url}", "enabled": True},
        stdio={"type": "local", "command": "{words}", "enabled": True},
        timeout_unit="ms",
    ),
    KnownClient(
        id="crush",
        title="Crush",
        files=(("user", "{config}/crush/crush.json", ("mcp",)), ("project", "{project}/.crush.json", ("mcp",))),
        http={"type": "http", "url": "{url}"},
        timeout_unit="s",
    ),
    KnownClient(
        id="amp",
        title="Amp",
        files=(
            ("user", "{config}/amp/settings.json", ("amp.mcpServers",)),
            ("project", "{project}/.amp/settings.json", ("amp.mcpServers",)),
        ),
        http={"url": "{url}"},
    ),
    KnownClient(
        id="goose",
        title="Goose",
        files=(("user", "{config}/goose/config.yaml", ("extensions",)),),
        http={"type": "streamable_http", "name": "holdfast", "description": "", "uri": "{url}", "enabled": True},
        stdio={
            "type": "stdio",
            "name": "holdfast",
            "description": "",
            "cmd": "{command}",
            "args": "{args}",
            "enabled": True,
        },
        expands=False,
        timeout_unit="s",
    ),
    KnownClient(
        id="continue",
        title="Continue",
        files=(
            ("user", "{home}/.continue/config.yaml", _SERVERS),
            ("project", "{project}/.continue/config.yaml", _SERVERS),
        ),
        http={"name": "holdfast", "type": "streamable-http", "url": "{url}"},
        stdio={"name": "holdfast", "command": "{command}", "args": "{args}"},
        expands=False,
        timeout_unit="ms",
    ),
    KnownClient(
        id="cline",
        title="Cline",
        files=(
            ("user", f"{_STORAGE}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json", _SERVERS),
            ("user", "{home}/.cline/data/settings/cline_mcp_settings.json", _SERVERS),
        ),
        http={"type": "streamableHttp", "url": "{url}"},
        timeout_unit="s",
    ),
    KnownClient(
        id="roo",
        title="Roo Code",
        files=(
            ("user", f"{_STORAGE}/rooveterinaryinc.roo-cline/settings/mcp_settings.json", _SERVERS),
            ("project", "{project}/.roo/mcp.json", _SERVERS),
        ),
        http={"type": "streamable-http", "url": "{url}"},
        timeout_unit="s",
    ),
    KnownClient(
        id="zed",
        title="Zed",
        files=(
            ("user", "{config}/zed/settings.json", ("context_servers",)),
            ("project", "{project}/.zed/settings.json", ("context_servers",)),
        ),
        http={"url": "{url}"},
        expands=False,
    ),
    KnownClient(
        id="copilot",
        title="Copilot CLI",
        files=(("user", "{home}/.copilot/mcp-config.json", _SERVERS),),
        http={"type": "http", "url": "{url}", "tools": ["*"]},
        tool_search=f'{_OWN_SEARCH}; for find mode its entry gets "deferTools": "never"',
        never_hidden={"deferTools": "never"},
    ),
    KnownClient(
        id="kiro",
        title="Kiro",
        files=(
            ("user", "{home}/.kiro/settings/mcp.json", _SERVERS),
            ("project", "{project}/.kiro/settings/mcp.json", _SERVERS),
        ),
        http={"url": "{url}"},
    ),
    KnownClient(
        id="lmstudio",
        title="LM Studio",
        files=(("user", "{home}/.lmstudio/mcp.json", _SERVERS),),
        http={"url": "{url}"},
        expands=False,
    ),
)

CLIENTS: Mapping[str, KnownClient] = {client.id: client for client in _ROWS}
"""By the name that the command line uses."""
