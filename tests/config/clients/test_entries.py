"""What each client writes of a server is the same server in our keys, and every client's file is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.config.client_import import ClientEntry, read_entry
from holdfast.config.known_clients import CLIENTS, ClientPaths, client_named
from holdfast.config.read import config_from_mapping
from holdfast.config.spec import ServerSpec
from holdfast.errors import UsageError


def entry(client: str, raw: object, **environ: str) -> ClientEntry:
    return read_entry(client_named(client), "it", raw, environ=environ, project=None)


def spec(client: str, raw: object, **environ: str) -> ServerSpec:
    """The server that the entry comes to, read as our own file would be."""
    found = entry(client, raw, **environ)
    assert found.problems == ()
    server = config_from_mapping({"mcpServers": {"it": dict(found.definition)}}, environ=environ).servers["it"]
    assert not server.problems, server
    return server


STDIO: dict[str, dict[str, Any]] = {
    "claude": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}},
    "claude-code": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"K": "${V}"}},
    "cursor": {"command": "npx", "args": ["-y", "x"], "env": {"K": "${env:V}"}},
    "vscode": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"K": "${input:v}"}},
    "windsurf": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "disabled": False},
    "codex": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "startup_timeout_sec": 20},
    "gemini": {"command": "npx", "args": ["-y", "x"], "env": {"K": "$V"}, "trust": True},
    "cline": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "autoApprove": [], "timeout": 60},
    "roo": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "alwaysAllow": ["a"]},
    "zed": {"source": "custom", "command": {"path": "npx", "args": ["-y", "x"], "env": {"K": "v"}}, "settings": {}},
    "copilot": {"type": "local", "command": "npx", "args": ["-y", "x"], "env": {"K": "v"}, "tools": ["*"]},
    "kiro": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}},
    "lmstudio": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}},
    "qwen": {"command": "npx", "args": ["-y", "x"], "env": {"K": "$V"}, "trust": True},
    "opencode": {"type": "local", "command": ["npx", "-y", "x"], "environment": {"K": "{env:V}"}, "enabled": True},
    "crush": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"K": "$V"}, "timeout": 120},
    "amp": {"command": "npx", "args": ["-y", "x"], "env": {"K": "${V}"}},
    "goose": {
        "type": "stdio",
        "name": "x",
        "description": "",
        "cmd": "npx",
        "args": ["-y", "x"],
        "envs": {"K": "v"},
        "env_keys": [],
        "timeout": 300,
        "bundled": None,
        "available_tools": [],
        "enabled": True,
    },
    "continue": {"name": "x", "command": "npx", "args": ["-y", "x"], "env": {"K": "v"}},
}

REMOTE: dict[str, dict[str, Any]] = {
    "claude-code": {"type": "http", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "cursor": {"url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "vscode": {"type": "http", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "windsurf": {"serverUrl": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "codex": {"url": "https://e.com/mcp", "http_headers": {"X-Key": "v"}},
    "gemini": {"httpUrl": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "cline": {"type": "streamableHttp", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "roo": {"type": "streamable-http", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "zed": {"url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "copilot": {"type": "http", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}, "tools": ["*"]},
    "kiro": {"url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "lmstudio": {"url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "qwen": {"httpUrl": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "opencode": {"type": "remote", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "crush": {"type": "http", "url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "amp": {"url": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "goose": {"type": "streamable_http", "name": "x", "uri": "https://e.com/mcp", "headers": {"X-Key": "v"}},
    "continue": {
        "name": "x",
        "type": "streamable-http",
        "url": "https://e.com/mcp",
        "requestOptions": {"headers": {"X-Key": "v"}},
    },
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_that_a_client_starts_is_the_same_program_here(client: str) -> None:
    server = spec(client, STDIO[client], V="v")
    assert (server.transport, server.command, server.args, dict(server.env)) == (
        "stdio",
        "npx",
        ("-y", "x"),
        {"K": "v"},
    )


@pytest.mark.parametrize(
    ("client", "written", "timeout", "start"),
    [
        ("claude-code", {"timeout": 300_000}, "5m", None),
        ("claude-code", {"timeout": 500}, "500ms", None),
        ("gemini", {"timeout": 30_000}, "30s", None),
        ("cline", {"timeout": 3600}, "1h", None),
        ("cline", {"timeout": "90"}, "90s", None),
        ("roo", {"timeout": 1800}, "30m", None),
        ("codex", {"tool_timeout_sec": 1200.0, "startup_timeout_sec": 45}, "20m", "45s"),
        ("codex", {"startup_timeout_ms": 20_000}, None, "20s"),
        ("cursor", {"timeout": 120}, "2m", None),
        ("copilot", {"timeout": 120_000}, "2m", None),
        ("kiro", {"timeout": "${LIMIT}"}, "${LIMIT}", None),
        ("vscode", {"startTimeout": "30s"}, None, "30s"),
    ],
)
def test_a_clients_limit_is_written_as_a_duration_in_its_unit(
    client: str, written: dict[str, Any], timeout: str | None, start: str | None
) -> None:
    found = entry(client, {"command": "npx", **written}, LIMIT="30s")
    assert (found.problems, found.dropped) == ((), ())
    assert (found.definition.get("timeout"), found.definition.get("startTimeout")) == (timeout, start)
    assert not {"tool_timeout_sec", "startup_timeout_sec", "startup_timeout_ms"} & found.definition.keys()


@pytest.mark.parametrize("value", [0, -5, "soon", True, 10**30, [60]])
def test_a_clients_limit_that_is_none_is_not_copied_and_the_server_is(value: object) -> None:
    found = entry("cline", {"command": "npx", "timeout": value})
    assert found.problems == ()
    assert found.dropped == ("timeout (no duration)",)
    assert "timeout" not in found.definition


@pytest.mark.parametrize("client", REMOTE)
def test_an_address_that_a_client_dials_is_the_same_address_here(client: str) -> None:
    server = spec(client, REMOTE[client])
    assert (server.transport, server.url, server.headers) == ("http", "https://e.com/mcp", {"X-Key": "v"})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stdio", [False, True])
def test_what_a_client_is_told_of_the_hub_is_in_its_own_words(client: str, stdio: bool) -> None:
    said = CLIENTS[client].hub_entry("http://127.0.0.1:1/mcp", ("/bin/holdfast", "serve", "--stdio"), stdio=stdio)
    server = spec(client, said)
    if stdio or client == "claude":
        assert (server.command, server.args) == ("/bin/holdfast", ("serve", "--stdio"))
    else:
        assert (server.transport, server.url) == ("http", "http://127.0.0.1:1/mcp")


def test_codex_takes_tokens_and_headers_from_variables() -> None:
    raw = {
        "url": "https://e.com/mcp",
        "bearer_token_env_var": "TOKEN",
        "env_http_headers": {"X-Org": "ORG"},
        "enabled_tools": ["a"],
        "disabled_tools": ["b"],
        "enabled": False,
    }
    server = spec("codex", raw, TOKEN="t", ORG="o")
    assert server.headers == {"X-Org": "o", "Authorization": "Bearer t"}
    assert (server.tools.include, server.tools.exclude, server.enabled) == (("a",), ("b",), False)
    assert entry("codex", raw).needs == ("ORG", "TOKEN")


def test_codex_passes_variables_on_by_their_names() -> None:
    raw = {"command": "x", "env_vars": ["A", {"name": "B", "source": "local"}], "env": {"C": "3"}}
    assert dict(spec("codex", raw, A="1", B="2").env) == {"A": "1", "B": "2", "C": "3"}


def test_an_address_of_geminis_is_sse_unless_it_says_otherwise() -> None:
    assert spec("gemini", {"url": "https://e.com/mcp"}).transport == "sse"
    assert spec("gemini", {"url": "https://e.com/mcp", "type": "http"}).transport == "http"


@pytest.mark.parametrize("client", ["claude", "codex", "zed"])
def test_a_dollar_that_means_nothing_to_the_client_means_nothing_here(client: str) -> None:
    assert spec(client, {"command": "x", "args": ["${HOME}"]}, HOME="/me").args == ("${HOME}",)


def test_an_input_of_vs_codes_becomes_a_variable_that_is_asked_for() -> None:
    found = entry("vscode", {"command": "x", "env": {"K": "${input:github-token}"}})
    assert found.definition["env"] == {"K": "${env:GITHUB_TOKEN}"}
    assert found.needs == ("GITHUB_TOKEN",)


def test_what_means_nothing_here_is_left_out_and_named() -> None:
    found = entry("cline", {"command": "x", "autoApprove": ["a"], "brandNew": 1})
    assert found.dropped == ("autoApprove", "brandNew")
    assert dict(found.definition) == {"command": "x"}


def test_a_server_of_a_zed_extension_stays_with_zed() -> None:
    assert entry("zed", {"source": "extension", "settings": {"key": "v"}}).problems


def test_a_projects_server_runs_in_its_project(tmp_path: Path) -> None:
    found = read_entry(client_named("cursor"), "it", {"command": "./x"}, environ={}, project=tmp_path)
    assert found.definition["cwd"] == str(tmp_path)


def test_no_secret_is_in_a_repr() -> None:
    assert "s3cret" not in repr(
        entry("cursor", {"command": "x", "env": {"K": "s3cret"}, "args": ["--token", "s3cret"]})
    )


@pytest.mark.parametrize(
    ("client", "linux", "mac"),
    [
        (
            "claude",
            ".config/Claude/claude_desktop_config.json",
            "Library/Application Support/Claude/claude_desktop_config.json",
        ),
        ("claude-code", ".claude.json", ".claude.json"),
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json"),
        ("vscode", ".config/Code/User/mcp.json", "Library/Application Support/Code/User/mcp.json"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", ".codeium/windsurf/mcp_config.json"),
        ("codex", ".codex/config.toml", ".codex/config.toml"),
        ("gemini", ".gemini/settings.json", ".gemini/settings.json"),
        ("zed", ".config/zed/settings.json", ".config/zed/settings.json"),
    ],
)
def test_each_clients_file_is_looked_for_where_its_system_keeps_it(client: str, linux: str, mac: str) -> None:
    for is_mac, expected in ((False, linux), (True, mac)):
        around = ClientPaths(environ={"HOME": "/me"}, project=Path("/p"), mac=is_mac)
        (place, *_) = CLIENTS[client].places(around, scopes=("user",))
        assert place.file == Path("/me") / expected


def test_folders_that_were_moved_are_followed() -> None:
    around = ClientPaths(
        environ={"HOME": "/me", "XDG_CONFIG_HOME": "/cfg", "CODEX_HOME": "/cx"}, project=Path("/p"), mac=False
    )
    assert CLIENTS["codex"].places(around, scopes=("user",))[0].file == Path("/cx/config.toml")
    assert CLIENTS["zed"].places(around, scopes=("user",))[0].file == Path("/cfg/zed/settings.json")


def test_a_project_has_places_of_its_own() -> None:
    around = ClientPaths(environ={"HOME": "/me"}, project=Path("/p"), mac=False)
    places = CLIENTS["claude-code"].places(around, scopes=("project",))
    assert [(str(place.file), place.path) for place in places] == [
        ("/me/.claude.json", ("projects", "/p", "mcpServers")),
        ("/p/.mcp.json", ("mcpServers",)),
    ]


def test_a_client_that_nobody_knows_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="there is no client `emacs`"):
        client_named("emacs")


@pytest.mark.parametrize(("key", "needs"), [("url", "MCP_URL"), ("timeout", "MCP_TIMEOUT"), ("disabled", "MCP_OFF")])
def test_a_value_that_is_a_variable_which_is_not_set_here_is_no_fault_of_the_entry(key: str, needs: str) -> None:
    found = entry("cursor", {"url": "https://example.com/mcp", key: f"${{env:{needs}}}"})
    assert found.problems == ()
    assert found.needs == (needs,)
