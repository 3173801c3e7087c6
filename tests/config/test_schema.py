"""The published schema is the one that the models give, and says what the reader says."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from holdfast.config.file_models import SERVER_KEYS, TOP_KEYS
from holdfast.config.read import parse_config
from holdfast.errors import ConfigError
from schema.generate import config_schema

PUBLISHED = Path(__file__).parents[2] / "schema" / "holdfast.schema.json"

GOOD: list[object] = [
    {},
    {"mcpServers": {}},
    {"$schema": "holdfast.schema.json", "servers": {"a": {"command": "x"}}, "inputs": []},
    {"mcpServers": {"a": {"command": "x", "args": ["1", 2], "env": {"A": 1, "B": None}, "autoApprove": []}}},
    {"mcpServers": {"a": {"type": "streamable-http", "url": "https://x/mcp", "headers": {"A": "1"}}}},
    {"mcpServers": {"a": {"url": "${BASE}/mcp", "enabled": "${ON:-true}"}, "b": {"serverUrl": "http://x"}}},
    {"mcpServers": {"a": {"command": "x", "tools": ["a"]}, "b": {"command": "x", "tools": {"include": ["a"]}}}},
    {"holdfast": {"load": {"attempts": 3, "backoff": "250ms"}, "limits": {"messageBytes": "1MiB", "pages": 3}}},
    {"mcpServers": {"a": {"command": "x", "lazy": True}}, "holdfast": {"idle": "15m", "refresh": "${EVERY:-1s}"}},
    {"holdfast": {"breaker": {"threshold": 1, "growth": 1.5, "maxCooldown": "5m"}, "call": {"queue": 0}}},
    {"holdfast": {"reconnect": {"backoff": ["1s", "${PAUSE:-2s}"], "selfProbe": "off"}, "refresh": "off"}},
    {"holdfast": {"reconnect": {"backoff": ["0.01s"] * 20}}},
    {"holdfast": {"access": {"rules": [{"effect": "allow", "groups": ["a"], "when": "arguments.n < 1"}]}}},
    {"mcpServers": {"a": dict.fromkeys(SERVER_KEYS) | {"command": "x"}}, **dict.fromkeys(TOP_KEYS)},
]
BAD: list[object] = [
    [],
    {"mcpServer": {}},
    {"mcpServers": {"": {"command": "x"}}},
    {"mcpServers": {"a": {}}},
    {"mcpServers": {"a": {"command": "x", "url": "http://x"}}},
    {"mcpServers": {"a": {"command": "x", "args": "y"}}},
    {"mcpServers": {"a": {"command": "x", "comand": "y"}}},
    {"mcpServers": {"a": {"url": "example.com"}}},
    {"mcpServers": {"a": {"url": "http://x", "type": "ws"}}},
    {"mcpServers": {"a": {"command": "x", "tools": {"includes": []}}}},
    {"mcpServers": {"a": {"command": "x", "prefix": "a b"}}},
    {"holdfast": {"load": {"backoff": 250}}},
    {"holdfast": {"load": {"backoff": "250"}}},
    {"holdfast": {"load": {"attempts": 0}}},
    {"holdfast": {"limits": {"messageBytes": "16 megabytes"}}},
    {"holdfast": {"brakes": {}}},
    {"mcpServers": {"a": {"command": "x", "lazy": "yes"}}},
    {"holdfast": {"breaker": {"threshold": 0}}},
    {"holdfast": {"breaker": {"window": "0.0s"}}},
    {"holdfast": {"breaker": {"growth": 0.5}}},
    {"holdfast": {"breaker": {"growth": 101}}},
    {"holdfast": {"breaker": {"growth": "2x"}}},
    {"holdfast": {"breaker": {"cooldown": "off"}}},
    {"holdfast": {"reconnect": {"failures": 0}}},
    {"holdfast": {"reconnect": {"backoff": "1s"}}},
    {"holdfast": {"reconnect": {"backoff": []}}},
    {"holdfast": {"reconnect": {"backoff": ["1s"] * 21}}},
    {"holdfast": {"reconnect": {"backoff": ["1s", "0s"]}}},
    {"holdfast": {"reconnect": {"selfProbe": False}}},
    {"holdfast": {"call": {"concurrency": 0}}},
    {"holdfast": {"call": {"queue": -1}}},
    {"holdfast": {"refresh": "never"}},
    {"holdfast": {"refresh": None}},
    {"holdfast": {"idle": "0s"}},
    {"holdfast": {"access": {"rules": [{"tools": ["a"]}]}}},
    {"holdfast": {"access": {"rules": [{"effect": "allow", "groups": []}]}}},
    {"holdfast": {"access": {"rules": [{"effect": "allow", "principals": ["a*"]}]}}},
    {"holdfast": {"access": {"rules": [{"effect": "allow", "tool": ["a"]}]}}},
    {"holdfast": {"access": {"rules": {"effect": "allow"}}}},
]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(config_schema())
    return jsonschema.Draft202012Validator(config_schema())


def test_the_published_schema_is_not_stale() -> None:
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == config_schema(), "run `make schema`"


@pytest.mark.parametrize(
    ("config", "good"), [*((config, True) for config in GOOD), *((config, False) for config in BAD)]
)
def test_the_schema_and_the_reader_agree(
    validator: jsonschema.Draft202012Validator, config: object, good: bool
) -> None:
    assert validator.is_valid(config) is good
    assert reads(json.dumps(config)) is good


def reads(text: str) -> bool:
    try:
        config = parse_config(text, environ={"BASE": "http://x"})
    except ConfigError:
        return False
    return all(not server.problems for server in config.servers.values())


def test_every_key_is_described_and_defaults_are_written_as_people_write_them() -> None:
    schema = config_schema()
    for definition in [schema, *schema["$defs"].values()]:
        for key, described in definition["properties"].items():
            assert described.get("description") or "$ref" in described, key
    load = schema["$defs"]["load"]["properties"]
    assert (load["backoff"]["default"], load["attempts"]["default"]) == ("250ms", 3)
    assert schema["$defs"]["limits"]["properties"]["messageBytes"]["default"] == "16MiB"
    breaker, reconnect = schema["$defs"]["breaker"]["properties"], schema["$defs"]["reconnect"]["properties"]
    assert (breaker["growth"]["default"], breaker["window"]["default"]) == (1.0, "30s")
    assert reconnect["backoff"]["default"] == ["1s", "2s", "4s", "8s", "16s"]
    assert "default" not in schema["$defs"]["server"]["properties"]["command"]
