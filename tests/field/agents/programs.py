"""The agent programs: how each is installed, told of the model and of the hub, and run without a person.

A program gets a home of its own, with the files that its documentation names. ``Target`` is the hub: an address, or the
command that serves over stdio.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.field.environments import Environment, NodeEnvironment, PythonEnvironment

__all__ = ["PROGRAMS", "Program", "Run"]

PROMPT = "Use the echo tool as you are told."


@dataclass(frozen=True)
class Run:
    """What a program is given."""

    home: Path
    """Its home, and the folder that it works in."""
    model: str
    """The address of the scripted model."""
    hub: Mapping[str, Any]
    """``{"url": …}``, or ``{"command": …, "args": …, "env": …}``."""

    def write(self, name: str, text: str) -> Path:
        """A file of its home."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def entry(self, **of_url: Any) -> dict[str, Any]:
        """The hub as most programs write it: ``of_url`` beside an address."""
        return {**self.hub, **of_url} if "url" in self.hub else dict(self.hub)


@dataclass(frozen=True)
class Program:
    """One row of the table."""

    name: str
    environment: Environment
    binary: str
    library: str
    begin: Callable[[Run], list[str]]
    """Writes its files, and returns its arguments."""
    env: Callable[[Run], dict[str, str]] = field(default=lambda _: {})
    setup: Callable[[Run], list[str]] | None = None
    """The arguments of a command that must run before."""

    def __str__(self) -> str:
        return self.name

    @property
    def versions(self) -> str:
        assert isinstance(self.environment, PythonEnvironment | NodeEnvironment)
        return self.environment.versions(self.library)

    @property
    def path(self) -> Path:
        """The program itself."""
        if isinstance(self.environment, PythonEnvironment):
            return self.environment.python.with_name(self.binary)
        assert isinstance(self.environment, NodeEnvironment)
        return self.environment.modules / ".bin" / self.binary

    def environ(self, run: Run) -> dict[str, str]:
        """A clean environment: nothing of the user who runs the tests."""
        return {
            "HOME": str(run.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "SHELL": "/bin/bash",
            **self.env(run),
        }


def _node(name: str, package: str) -> NodeEnvironment:
    return NodeEnvironment(f"agent-{name}", (package,))


def _openai(run: Run) -> dict[str, str]:
    return {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{run.model}/v1", "OPENAI_MODEL": "gpt-4.1"}


def _codex(run: Run) -> list[str]:
    hub = "\n".join(f"{key} = {json.dumps(value)}" for key, value in run.hub.items() if key != "env")
    env = "\n".join(f"{key} = {json.dumps(value)}" for key, value in run.hub.get("env", {}).items())
    run.write(
        ".codex/config.toml",
        'model = "gpt-5"\nmodel_provider = "scripted"\n'
        f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{run.model}/v1"\n'
        'env_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
        f"[mcp_servers.holdfast]\nrequired = true\n{hub}\n" + (f"[mcp_servers.holdfast.env]\n{env}\n" if env else ""),
    )
    return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT]


def _opencode(run: Run) -> list[str]:
    if "url" in run.hub:
        hub = {"type": "remote", "url": run.hub["url"], "enabled": True}
    else:
        command = [run.hub["command"], *run.hub["args"]]
        hub = {"type": "local", "command": command, "environment": run.hub["env"], "enabled": True}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{run.model}/v1", "apiKey": "key"},
        "models": {"gpt-4.1": {"name": "scripted", "tool_call": True}},
    }
    settings = {
        "provider": {"scripted": provider},
        "model": "scripted/gpt-4.1",
        "mcp": {"holdfast": hub},
        "autoupdate": False,
        "share": "disabled",
    }
    run.write(".config/opencode/opencode.json", json.dumps(settings))
    return ["run", PROMPT]


def _gemini(run: Run) -> list[str]:
    hub = {"httpUrl": run.hub["url"]} if "url" in run.hub else dict(run.hub)
    settings = {
        "mcpServers": {"holdfast": {**hub, "trust": True}},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
    }
    run.write(".gemini/settings.json", json.dumps(settings))
    return ["--yolo", "--skip-trust", "-m", "gemini-2.5-pro", "-p", PROMPT]


def _qwen(run: Run) -> list[str]:
    hub = {"httpUrl": run.hub["url"]} if "url" in run.hub else dict(run.hub)
    settings = {
        "mcpServers": {"holdfast": {**hub, "trust": True}},
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "tools": {"toolSearch": {"enabled": False}},  # else the model sees the names alone
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
    }
    run.write(".qwen/settings.json", json.dumps(settings))
    return ["--yolo", "--auth-type", "openai", "-p", PROMPT]


def _claude(run: Run) -> list[str]:
    servers = {"mcpServers": {"holdfast": run.entry(type="http")}}
    file = run.write("mcp.json", json.dumps(servers))
    options = ["--mcp-config", str(file), "--strict-mcp-config", "--allowedTools", "mcp__holdfast"]
    return ["--print", *options, "--model", "claude-sonnet-4-5", "--", PROMPT]


def _copilot(run: Run) -> list[str]:
    hub = {"type": "http", **run.hub} if "url" in run.hub else {"type": "local", **run.hub}
    run.write(".copilot/mcp-config.json", json.dumps({"mcpServers": {"holdfast": {**hub, "tools": ["*"]}}}))
    return ["-p", PROMPT, "--allow-all-tools", "--no-color", "--model", "gpt-4.1"]


def _cline(run: Run) -> list[str]:
    hub = run.entry(type="streamableHttp")
    settings = {"mcpServers": {"holdfast": {**hub, "timeout": 60, "disabled": False}}}
    run.write(".cline/data/settings/cline_mcp_settings.json", json.dumps(settings))
    return ["--auto-approve", "true", "--provider", "openai", "--model", "gpt-4.1", PROMPT]


def _continue(run: Run) -> list[str]:
    model = {
        "name": "scripted",
        "provider": "openai",
        "model": "gpt-4.1",
        "apiBase": f"{run.model}/v1",
        "apiKey": "key",
        "roles": ["chat"],
        "capabilities": ["tool_use"],
    }
    hub = {"name": "holdfast", **run.entry(type="streamable-http")}
    file = run.write(
        "config.yaml",
        json.dumps({"name": "test", "version": "1.0.0", "schema": "v1", "models": [model], "mcpServers": [hub]}),
    )
    return ["--config", str(file), "--auto", "-p", PROMPT]


def _goose(run: Run) -> list[str]:
    hub: dict[str, Any]
    if "url" in run.hub:
        hub = {"type": "streamable_http", "uri": run.hub["url"]}
    else:
        hub = {"type": "stdio", "cmd": run.hub["command"], "args": run.hub["args"], "envs": run.hub["env"]}
    extension = {**hub, "name": "holdfast", "description": "", "enabled": True, "timeout": 300}
    run.write(".config/goose/config.yaml", json.dumps({"extensions": {"holdfast": extension}}))
    return ["run", "--no-session", "-t", PROMPT]


def _fast_agent(run: Run) -> list[str]:
    hub = {"transport": "http", **run.hub} if "url" in run.hub else dict(run.hub)
    run.write(
        "fastagent.config.yaml",
        json.dumps({"mcp": {"servers": {"holdfast": hub}}, "logger": {"type": "none", "progress_display": False}}),
    )
    return ["go", "--model", "openai.gpt-4.1", "--servers", "holdfast", "--message", PROMPT]


def _llm(run: Run) -> list[str]:
    model = {
        "model_id": "scripted",
        "model_name": "scripted",
        "api_base": f"{run.model}/v1",
        "api_key_name": "scripted",
        "supports_tools": True,
    }
    run.write("llm/extra-openai-models.yaml", json.dumps([model]))
    run.write("llm/keys.json", json.dumps({"scripted": "key"}))
    run.write(".llm-tools-mcp/mcp.json", json.dumps({"mcpServers": {"holdfast": run.entry(type="http")}}))
    return ["-m", "scripted", "-T", "MCP", "--chain-limit", "0", PROMPT]


def _gptme(run: Run) -> list[str]:
    hub = {"url": run.hub["url"]} if "url" in run.hub else dict(run.hub)
    env = hub.pop("env", {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in hub.items()]
    if env:
        lines.append(
            "env = {" + ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in env.items()) + "}"
        )
    run.write(
        ".config/gptme/config.toml",
        "[prompt]\n[env]\n[mcp]\nenabled = true\nauto_start = true\n"
        '[[mcp.servers]]\nname = "holdfast"\nenabled = true\n' + "\n".join(lines) + "\n",
    )
    return ["--non-interactive", "--tool-format", "tool", "--no-stream", "-m", "local/gpt-4.1", PROMPT]


PROGRAMS: tuple[Program, ...] = (
    Program("Codex", _node("codex", "@openai/codex"), "codex", "@openai/codex", _codex, _openai),
    Program(
        "opencode",
        _node("opencode", "opencode-ai"),
        "opencode",
        "opencode-ai",
        _opencode,
        lambda _: {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    ),
    Program(
        "Gemini CLI",
        _node("gemini", "@google/gemini-cli"),
        "gemini",
        "@google/gemini-cli",
        _gemini,
        lambda run: {"GEMINI_API_KEY": "key", "GOOGLE_GEMINI_BASE_URL": run.model},
    ),
    Program("Qwen Code", _node("qwen", "@qwen-code/qwen-code"), "qwen", "@qwen-code/qwen-code", _qwen, _openai),
    Program(
        "Claude Code",
        _node("claude", "@anthropic-ai/claude-code"),
        "claude",
        "@anthropic-ai/claude-code",
        _claude,
        lambda run: {
            "ANTHROPIC_BASE_URL": run.model,
            "ANTHROPIC_API_KEY": "key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",  # else the model sees the names alone
        },
    ),
    Program(
        "Copilot CLI",
        _node("copilot", "@github/copilot"),
        "copilot",
        "@github/copilot",
        _copilot,
        lambda run: {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": f"{run.model}/v1",
            "COPILOT_PROVIDER_API_KEY": "key",
            "COPILOT_MODEL": "gpt-4.1",
        },
    ),
    Program(
        "Cline",
        _node("cline", "cline"),
        "cline",
        "cline",
        _cline,
        setup=lambda run: [
            *("auth", "--provider", "openai", "--apikey", "key"),
            *("--modelid", "gpt-4.1", "--baseurl", f"{run.model}/v1"),
        ],
    ),
    Program("Continue", _node("continue", "@continuedev/cli"), "cn", "@continuedev/cli", _continue),
    Program(
        "Goose",
        _node("goose", "@aaif/goose"),
        "goose",
        "@aaif/goose",
        _goose,
        lambda run: {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "gpt-4.1",
            "OPENAI_HOST": run.model,
            "OPENAI_API_KEY": "key",
            "GOOSE_MODE": "auto",
            "GOOSE_DISABLE_KEYRING": "1",
            "GOOSE_TELEMETRY_ENABLED": "false",
        },
    ),
    Program(
        "fast-agent",
        PythonEnvironment("agent-fast-agent", ("fast-agent-mcp", "pydantic<2.12", "a2a-sdk<0.3")),
        "fast-agent",
        "fast-agent-mcp",
        _fast_agent,
        _openai,
    ),
    Program(
        "llm",
        PythonEnvironment("agent-llm", ("llm", "llm-tools-mcp", "mcp<2")),
        "llm",
        "llm",
        _llm,
        lambda run: {"LLM_USER_PATH": str(run.home / "llm")},
    ),
    Program(
        "gptme",
        PythonEnvironment("agent-gptme", ("gptme", "mcp<2")),
        "gptme",
        "gptme",
        _gptme,
        lambda run: {**_openai(run), "LOCAL_API_KEY": "key", "GPTME_CHECK": "false"},
    ),
)
