"""Whole configurations: from a file, a text, a mapping; one bad server never takes the others down."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from holdfast.config.file_models import TOP_KEYS
from holdfast.config.read import config_from_mapping, load_config, parse_config
from holdfast.config.settings import BreakerSettings, CallPolicy, Limits, LoadPolicy, ReconnectSettings, Settings
from holdfast.core.breaker import BreakerPolicy
from holdfast.core.lifecycle.backoff import LifecyclePolicy
from holdfast.errors import ConfigError
from tests.config.helpers import read, top_problems

NESTED: dict[str, object] = {}
NESTED["mcpServers"] = NESTED


def test_the_usual_shapes_of_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"a": {"command": "x"}}, "servers": {"b": {"url": "http://localhost/mcp"}},}')
    config = load_config(file)
    assert list(config.servers) == ["a", "b"]
    assert all(not server.problems for server in config.servers.values())
    assert config.source == file
    assert config.settings == Settings()


@pytest.mark.parametrize(
    "text", ["{}", '{"mcpServers": {}}', '{"servers": null}', '{"holdfast": {}}', '{"inputs": []}']
)
def test_nothing_configured_is_no_error(text: str) -> None:
    assert not read(text).servers


@pytest.mark.requirement("LOAD-3")
def test_one_bad_server_does_not_take_the_others_down() -> None:
    config = read('{"mcpServers": {"bad": {"comand": "x"}, "good": {"command": "x"}, "worse": 3}}')
    assert not config.servers["good"].problems
    assert config.servers["bad"].problems
    assert config.servers["worse"].problems


def test_settings_are_read_and_left_out_ones_keep_their_defaults() -> None:
    config = read(
        """{"holdfast": {
          "load": {"attempts": 5, "backoff": "1s", "attemptTimeout": "${T:-30s}", "concurrency": "${N}"},
          "call": {"timeout": "5m", "readyTimeout": "1s", "concurrency": 8, "queue": 0},
          "breaker": {"threshold": 5, "window": "1m", "cooldown": "90s", "growth": "${G}", "maxCooldown": "1h"},
          "reconnect": {"failures": 1, "backoff": ["500ms", "${B:-3s}"], "selfProbe": "1m", "standing": "10s"},
          "refresh": "30s",
          "idle": "15m",
          "limits": {"messageBytes": "1MiB", "pages": 7, "stderrBytes": 100}
        }}""",
        N="4",
        G="1.5",
    )
    assert config.settings == Settings(
        load=LoadPolicy(attempts=5, backoff=1.0, attempt_timeout=30.0, concurrency=4),
        call=CallPolicy(timeout=300.0, ready_timeout=1.0, concurrency=8, queue=0),
        limits=Limits(message_bytes=1 << 20, pages=7, stderr_bytes=100),
        breaker=BreakerSettings(threshold=5, window=60.0, cooldown=90.0, growth=1.5, max_cooldown=3600.0),
        reconnect=ReconnectSettings(failures=1, backoff=(0.5, 3.0), self_probe=60.0, standing=10.0),
        refresh=30.0,
        idle=900.0,
    )


def test_what_is_done_now_and_then_can_be_off() -> None:
    settings = read('{"holdfast": {"refresh": "${R}", "reconnect": {"selfProbe": "off"}}}', R="off").settings
    assert settings == Settings(refresh=None, reconnect=ReconnectSettings(self_probe=None))


def test_a_cooldown_that_does_not_grow_may_be_longer_than_a_growing_one() -> None:
    settings = read('{"holdfast": {"breaker": {"cooldown": "1h", "growth": 1}}}').settings
    assert settings.breaker == BreakerSettings(cooldown=3600.0)


def test_the_defaults_are_those_that_breaker_and_lifecycle_have_themselves() -> None:
    breaker, lifecycle = asdict(BreakerPolicy()), asdict(LifecyclePolicy())
    settings = Settings()
    assert asdict(settings.breaker).items() <= breaker.items()
    assert asdict(settings.reconnect).items() <= lifecycle.items()
    assert (settings.refresh, settings.idle) == (lifecycle["refresh"], lifecycle["idle_after"])


def test_everything_wrong_at_the_top_and_in_the_settings_is_told_at_once() -> None:
    found = top_problems(
        """{
          "mcpServer": {},
          "holdfast": {
            "load": {"attempts": 0, "backoff": 1, "attemptTimeout": "${MISSING}", "retries": 3},
            "call": [],
            "limits": {"pages": true},
            "brakes": {}
          },
          "servers": [],
          "servers": []
        }"""
    )
    assert [(p.line, p.column) for p in found] == [
        (2, 11), (4, 34), (4, 48), (4, 69), (4, 83), (5, 21), (6, 33), (7, 13), (10, 11), (10, 22),
    ]  # fmt: skip
    assert [p.message.split("`")[1] for p in found] == [
        "mcpServer", "load.attempts", "load.backoff", "load.attemptTimeout", "retries", "call", "limits.pages",
        "brakes", "servers", "servers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[]", "must be an object, not a list", "mcpServers"),
        ('{"mcpServers": []}', "`mcpServers` must be an object", "mcpServers"),
        ('{"mcpservers": {}}', "unknown key `mcpservers`", "did you mean `mcpServers`?"),
        ('{"context_servers": {}}', "unknown key", "rename"),
        ('{"mcp": {"servers": {}}}', "unknown key", "mcpServers"),
        ('{"github": {"command": "x"}}', "unknown key `github`", "looks like a server"),
        ('{"holdfast": 3}', "`holdfast` must be an object", ""),
        (
            '{"holdfast": {"zeal": "60s"}}',
            "unknown key `zeal`",
            "breaker, call, doctorTool, idle, largeResults, limits, load, nameLength, perClient, perUser, pin",
        ),
        ('{"holdfast": {"breaker": {"max_cooldown": "1s"}}}', "unknown key `max_cooldown`", "`maxCooldown`?"),
        ('{"holdfast": {"load": {"attemptTimeout": "1h"}}}', "`attemptTimeout` (1h) is longer", "`totalTimeout`"),
        ('{"holdfast": {"call": {"hardTimeout": "1s"}}}', "`timeout` (1m) is longer", "`hardTimeout`"),
        ('{"holdfast": {"call": {"timeout": "0s"}}}', "longer than 0", "10s"),
        ('{"holdfast": {"call": {"concurrency": 0}}}', "`call.concurrency` must be between 1 and", "as in 3"),
        ('{"holdfast": {"call": {"queue": -1}}}', "`call.queue` must be between 0 and", "as in 3"),
        ('{"holdfast": {"breaker": {"threshold": 0}}}', "`breaker.threshold` must be between 1 and", "as in 3"),
        ('{"holdfast": {"breaker": {"window": "0s"}}}', "`breaker.window` must be longer than 0", "10s"),
        ('{"holdfast": {"breaker": {"cooldown": "off"}}}', "`breaker.cooldown` must be a duration", "units"),
        ('{"holdfast": {"breaker": {"growth": 0.9}}}', "`breaker.growth` must be between 1 and 100", "doubles"),
        ('{"holdfast": {"breaker": {"growth": 1e9}}}', "`breaker.growth` must be between 1 and 100", "doubles"),
        ('{"holdfast": {"breaker": {"growth": true}}}', "must be a number, not a boolean", "1.5"),
        ('{"holdfast": {"breaker": {"growth": 2, "cooldown": "1h"}}}', "`cooldown` (1h) is longer", "`maxCooldown`"),
        ('{"holdfast": {"reconnect": {"failures": 0}}}', "`reconnect.failures` must be between 1 and", "as in 3"),
        ('{"holdfast": {"reconnect": {"backoff": "1s"}}}', "must be a list of durations, not a text", '["1s"'),
        ('{"holdfast": {"reconnect": {"backoff": []}}}', "must contain between 1 and 20 durations", "each attempt"),
        ('{"holdfast": {"reconnect": {"backoff": ["1s", "0s"]}}}', "`reconnect.backoff[1]` must be longer", "10s"),
        ('{"holdfast": {"reconnect": {"backoff": [1]}}}', "`reconnect.backoff[0]` needs a unit", '"1s"'),
        ('{"holdfast": {"reconnect": {"selfProbe": 300}}}', "`reconnect.selfProbe` needs a unit", '"off" for never'),
        ('{"holdfast": {"refresh": false}}', "`refresh` must be a duration", '"off" for never'),
        ('{"holdfast": {"refresh": "0s"}}', "`refresh` must be longer than 0", '"off" for never'),
        ('{"holdfast": {"idle": "0s"}}', "`idle` must be longer than 0", "10s"),
    ],
)
def test_what_is_wrong_with_the_whole_is_said_with_a_hint(text: str, message: str, hint: str) -> None:
    (problem,) = top_problems(text)
    assert message in problem.message
    assert hint in problem.hint


def test_a_server_that_stands_twice_is_its_own_problem() -> None:
    config = read(
        """{"mcpServers": {
          "a": {"command": "x"},
          "a": {"command": "y"},
          "b": {"command": "x", "command": "y"},
          "c": {"command": "x"}
        }}"""
    )
    for name in ("a", "b"):
        server = config.servers[name]
        assert server.problems
        assert "second time" in server.problems[0].message
    assert not config.servers["c"].problems
    config = read('{"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "y"}}}')
    assert config.servers["a"].problems


def test_keys_of_other_clients_at_the_top_are_accepted() -> None:
    assert not read(json.dumps(dict.fromkeys(TOP_KEYS, "${NOT_SET}"))).servers


def test_an_error_names_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{\n  "mcpServers": {\n    "a": nope\n  }\n}')
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}:3:10: ")
    assert caught.value.hint == "did you mean to quote this?"


@given(st.binary(max_size=100) | st.text(max_size=100))
def test_nothing_but_a_config_error_is_ever_raised(data: bytes | str) -> None:
    try:
        parse_config(data, environ={})
    except ConfigError as error:
        assert error.problems  # noqa: PT017 - either outcome is right, another exception is not


# Mappings


def test_a_programs_mapping_has_the_same_keys_as_a_file() -> None:
    config = config_from_mapping(
        {
            "mcpServers": {"a": {"command": "./x", "args": ("-y",), "cwd": Path("data"), "env": {"K": "${KEY}"}}},
            "holdfast": {"load": {"attempts": 1}},
        },
        environ={"KEY": "v"},
    )
    server = config.servers["a"]
    assert not server.problems
    assert (server.command, server.args, server.cwd, server.env["K"]) == ("x", ("-y",), Path("data"), "v")
    assert config.settings.load.attempts == 1


def test_problems_in_a_mapping_are_placed_by_path() -> None:
    server = config_from_mapping({"servers": {"a b": {"command": "x", "args": [{}]}}}).servers["a b"]
    assert server.problems
    assert str(server.problems[0]) == 'servers["a b"].args[0]: `args[0]` must be a text, not an object'
    with pytest.raises(ConfigError, match=r"^holdfast\.load\.attempts: "):
        config_from_mapping({"holdfast": {"load": {"attempts": "many"}}})


@pytest.mark.parametrize("mapping", [{1: {}}, {"mcpServers": {2: {}}}, NESTED], ids=["top", "server", "endless"])
def test_a_mapping_that_no_file_could_hold_is_refused(mapping: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        config_from_mapping(mapping)


def test_a_value_that_no_file_could_hold_is_that_servers_problem() -> None:
    server = config_from_mapping({"mcpServers": {"a": {"command": object(), "headers": print}}}).servers["a"]
    assert server.problems
    assert "`command` must be a text, not a object" in server.problems[0].message


def test_reading_a_configuration_imports_neither_the_sdk_nor_an_http_client() -> None:
    code = (
        "import sys, holdfast.cli.config\n"
        "print([m for m in ('mcp', 'mcp_types', 'httpx2', 'httpx', 'anyio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
