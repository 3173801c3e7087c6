"""One definition becomes a server, or everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from holdfast.config.definition import keys_of
from holdfast.config.fields import TRANSPORTS
from holdfast.config.file_models import SERVER_KEYS, ServerFile
from holdfast.config.spec import ToolFilter
from tests.config.helpers import problems, read, server, spec

URL = "https://example.com/mcp"


@pytest.mark.parametrize(
    ("definition", "transport"),
    [
        ({"command": "x"}, "stdio"),
        ({"url": URL}, "http"),
        ({"serverUrl": URL}, "http"),
        ({"httpUrl": "https://example.com/sse"}, "http"),
        ({"url": "https://example.com/sse"}, "sse"),
        ({"url": "https://example.com/a/sse/?x=1"}, "sse"),
        ({"url": "https://example.com/browse"}, "http"),
        ({"url": "https://example.com/sse", "type": "http"}, "http"),
        ({"url": URL, "type": "SSE"}, "sse"),
        ({"url": URL, "transport": "streamable_http", "type": "http"}, "http"),
        ({"command": "x", "transportType": "stdio"}, "stdio"),
    ],
)
def test_the_transport_is_declared_or_inferred(definition: dict[str, object], transport: str) -> None:
    assert spec(definition).transport == transport


@pytest.mark.parametrize("key", ["type", "transport"])
@pytest.mark.parametrize(("spelling", "transport"), TRANSPORTS.items())
def test_every_spelling_of_a_transport_is_understood(key: str, spelling: str, transport: str) -> None:
    address = {"command": "x"} if transport == "stdio" else {"url": URL}
    assert spec({key: spelling, **address}).transport == transport


def test_a_process_is_described_in_full() -> None:
    found = spec(
        {
            "command": "npx",
            "args": ["-y", "pkg", 8080],
            "env": {"A": "text", "N": 1, "F": 1.5, "B": True, "GONE": None},
            "cwd": "/srv",
            "prefix": "fs",
            "tools": {"include": ["read_*"], "exclude": ["read_secret"]},
        }
    )
    assert (found.command, found.args, found.cwd, found.prefix) == ("npx", ("-y", "pkg", "8080"), Path("/srv"), "fs")
    assert dict(found.env) == {"A": "text", "N": "1", "F": "1.5", "B": "true"}
    assert found.tools == ToolFilter(include=("read_*",), exclude=("read_secret",))


def test_a_remote_server_is_described_in_full() -> None:
    found = spec({"url": URL, "headers": {"X-Key": "v", "X-Depth": 3}, "allowPlainHttp": True, "prefix": ""})
    assert found.headers == {"X-Key": "v", "X-Depth": "3"}
    assert (found.url, found.allow_plain_http, found.prefix) == (URL, True, "")


@pytest.mark.parametrize(
    ("definition", "enabled"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"disabled": True}, False),
        ({"disabled": False}, True),
        ({"enabled": True, "disabled": False}, True),
        ({"enabled": "${ON:-false}"}, False),
    ],
)
def test_a_server_is_enabled_unless_it_says_otherwise(definition: dict[str, object], enabled: bool) -> None:
    assert spec({"command": "x", **definition}).enabled is enabled


@pytest.mark.parametrize(
    ("definition", "lazy"),
    [({}, False), ({"lazy": None}, False), ({"lazy": False}, False), ({"lazy": True}, True), ({"lazy": "${L}"}, True)],
)
def test_a_server_is_lazy_only_if_it_says_so(definition: dict[str, object], lazy: bool) -> None:
    assert spec({"command": "x", **definition}, L="true").lazy is lazy
    assert spec({"url": URL, **definition}, L="true").lazy is lazy


def test_a_bad_definition_still_says_that_it_is_disabled() -> None:
    found = server({"command": "x", "env": {"KEY": "${NOT_SET}"}, "disabled": True})
    assert found.problems
    assert not found.enabled


def test_what_other_clients_say_of_tools_is_honoured() -> None:
    gemini = spec({"command": "x", "includeTools": ["a", "b[1]"], "excludeTools": ["c"]})
    assert gemini.tools == ToolFilter(include=("a", "b[[]1]"), exclude=("c",))
    assert spec({"command": "x", "tools": ["read_*"], "disabledTools": ["d"]}).tools == ToolFilter(
        include=("read_*",), exclude=("d",)
    )


@pytest.mark.parametrize(
    ("definition", "message", "hint"),
    [
        ({}, "neither `command` nor `url`", '"command"'),
        ({"command": "x", "url": URL}, "both `command` and `url`", "keep `command`"),
        ({"type": "stdio", "url": URL}, "transport is stdio", '"type": "http"'),
        ({"type": "http", "command": "x"}, "transport is http", '"type": "stdio"'),
        ({"type": "websocket", "url": URL}, "`type` is `websocket`", '"stdio", "http" or "sse"'),
        ({"type": 3, "url": URL}, "`type` is a number", '"stdio", "http" or "sse"'),
        ({"type": "http", "transport": "sse", "url": URL}, "given twice, with different values", "keep `type`"),
        ({"url": URL, "serverUrl": URL + "2"}, "given twice, with different values", "keep `url`"),
        ({"command": "x", "args": "-y pkg"}, "`args` must be a list of texts, not a text", '["first", "second"]'),
        ({"command": "x", "args": [["-y"]]}, "`args[0]` must be a text, not a list", "double quotes"),
        ({"command": "x", "args": {"a": 1}}, "`args` must be a list of texts, not an object", ""),
        ({"command": "x", "args": ["a\0b"]}, "`args[0]` contains a NUL", "remove it"),
        ({"command": ""}, "`command` is empty", "write a value"),
        ({"command": ["npx", "-y"]}, "`command` must be a text, not a list", "double quotes"),
        ({"command": "npx -y pkg"}, "`command` is a whole command line", '"args"'),
        ({"command": "x", "env": ["A=1"]}, "`env` must be an object, not a list", '{"NAME": "value"}'),
        ({"command": "x", "env": {"A": ["1"]}}, "`env.A` must be a text, not a list", "double quotes"),
        ({"command": "x", "env": {"A=1": "2"}}, "= in it", "the name as the key"),
        ({"command": "x", "env": {"": "2"}}, "is empty", "write a value"),
        ({"command": "x", "envFile": "/does/not/exist"}, "`envFile` cannot be read: No such file", "relative path"),
        ({"command": "x", "enabled": "yes"}, "`enabled` must be true or false", "without quotes"),
        ({"command": "x", "lazy": 1}, "`lazy` must be true or false, not a number", "without quotes"),
        ({"command": "x", "enabled": True, "disabled": True}, "contradict each other", "keep one"),
        ({"command": "x", "prefix": "a b"}, "`prefix` is not a valid prefix", "32 letters"),
        ({"command": "x", "tools": "read_*"}, "`tools` must be an object, not a text", ""),
        ({"command": "x", "tools": {"include": "read_*"}}, "`tools.include` must be a list of texts", '["first"'),
        ({"command": "x", "tools": {"includes": []}}, "unknown key `includes`", "did you mean `include`?"),
        ({"command": "x", "tools": ["a"], "includeTools": ["b"]}, "both say which tools", "keep `tools.include`"),
        ({"url": "example.com/mcp"}, "`url` has no scheme", "https://"),
        ({"url": "localhost:3000/mcp"}, "`url` has no scheme", "https://"),
        ({"url": "ws://example.com"}, "`url` has the scheme `ws`", "http://"),
        ({"url": "https://"}, "`url` names no host", "https://host/mcp"),
        ({"url": "https://host:port/"}, "`url` is not a valid URL", "https://host:8080/mcp"),
        ({"url": "https://[::1/"}, "`url` is not a valid URL", "https://host:8080/mcp"),
        ({"url": "https://host/a b"}, "contains a space", "%20"),
        ({"url": URL, "headers": {"X Y": "1"}}, "is not a valid header name", "without a colon"),
        ({"url": URL, "headers": {"X": "a\nb"}}, "not allowed in a header", "ASCII"),
        ({"url": URL, "headers": {"X": "ü"}}, "not allowed in a header", "ASCII"),
        ({"url": URL, "headers": "X: 1"}, "`headers` must be an object, not a text", ""),
        ({"url": URL, "hedaers": {}}, "unknown key `hedaers`", "did you mean `headers`?"),
        ({"url": URL, "allow_plain_http": True}, "unknown key", "did you mean `allowPlainHttp`?"),
        ({"url": URL, "breaker": {}}, "unknown key `breaker`", "the keys here are"),
        ({"url": URL, "zzz\u001b[31m": 1}, "unknown key `zzz\\u001b[31m`", "the keys here are"),
        ("npx", "must be an object, not a text", '{"command"'),
        (None, "must be an object, not null", '{"command"'),
    ],
)
def test_what_is_wrong_is_said_with_a_hint(definition: object, message: str, hint: str) -> None:
    (problem,) = problems(definition)
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("name", "message"), [("", "has no name"), (" ", "has no name"), ("a\u0007", "control character")]
)
def test_a_server_needs_a_proper_name(name: str, message: str) -> None:
    found = read(json.dumps({"mcpServers": {name: {"command": "x"}}})).servers[name]
    assert found.problems
    assert message in found.problems[0].message


def test_everything_that_is_wrong_with_a_server_is_told_at_once_and_in_order() -> None:
    text = """{"mcpServers": {"s": {
      "command": "npx -y pkg",
      "args": "x",
      "env": {"A": "${ONE}", "B": "${TWO}"},
      "cwd": "${input:folder}",
      "argz": [],
      "command": "npx"
    }}}"""
    found = read(text.replace('"npx"', '"npx pkg"')).servers["s"]
    assert found.problems
    assert [(p.line, p.column, p.message.split("`")[1]) for p in found.problems] == [
        (3, 15, "args"),
        (4, 20, "env.A"),
        (4, 35, "env.B"),
        (5, 14, "cwd"),
        (6, 7, "argz"),
        (7, 7, "command"),
        (7, 18, "command"),
    ]
    assert all(problem.hint for problem in found.problems)


def test_a_command_with_spaces_that_exists_is_no_command_line(tmp_path: Path) -> None:
    program = tmp_path / "my server"
    program.touch(mode=0o755)
    assert spec({"command": str(program)}).command == str(program)
    assert spec({"command": "./my server"}, file=tmp_path / "mcp.json").command == str(program)


def test_a_value_whose_variable_is_missing_is_not_blamed_a_second_time() -> None:
    (problem,) = problems({"url": "${HOST}/mcp"})
    assert "`HOST`" in problem.message


def test_keys_of_other_clients_are_accepted_and_not_expanded() -> None:
    spec({"command": "x", **dict.fromkeys(SERVER_KEYS, "${NOT_SET}")})


def test_no_key_is_both_known_and_foreign() -> None:
    assert not set(SERVER_KEYS) & set(keys_of(ServerFile))


def test_keys_without_effect_are_ignored() -> None:
    spec({"url": URL, "env": {"A": "${NOT_SET}"}, "args": [], "cwd": "x"})
    spec({"command": "x", "headers": {"A": "${NOT_SET}"}})


# Paths


def test_relative_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "vars.env").write_text("A=1\n")
    definition = {"command": "./bin/x", "cwd": "data", "envFile": "vars.env"}
    found = spec(definition, file=tmp_path / "mcp.json")
    assert found.command == str(tmp_path / "bin" / "x")
    assert found.cwd == tmp_path / "data"
    assert dict(found.env) == {"A": "1"}


@pytest.mark.parametrize("folder", [".vscode", ".cursor", ".roo"])
def test_relative_paths_start_above_a_clients_own_folder(tmp_path: Path, folder: str) -> None:
    found = spec({"command": "bin/x", "args": ["${workspaceFolder}"]}, file=tmp_path / folder / "mcp.json")
    assert found.command == str(tmp_path / "bin" / "x")
    assert found.args == (str(tmp_path),)
    assert found.cwd == tmp_path


def test_a_bare_command_is_left_for_the_path_and_home_is_expanded(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    assert spec({"command": "npx"}, file=file).command == "npx"
    assert spec({"command": "~/bin/x", "cwd": "~"}, file=file).command == "/home/me/bin/x"
    assert spec({"command": "x", "cwd": "~"}, file=file).cwd == Path("/home/me")


def test_a_server_runs_in_the_projects_folder_unless_the_file_is_the_users_own(tmp_path: Path) -> None:
    assert spec({"command": "x"}, file=tmp_path / "mcp.json").cwd == tmp_path
    own = tmp_path / "holdfast" / "mcp.json"
    assert spec({"command": "x"}, file=own, XDG_CONFIG_HOME=str(tmp_path)).cwd is None
    assert spec({"url": URL}, file=tmp_path / "mcp.json").cwd is None


# Files of variables


def test_env_wins_over_the_env_file_and_nothing_in_it_is_expanded(tmp_path: Path) -> None:
    lines = [
        "# a comment",
        "",
        "export A=1",
        "B = two words # note",
        "C='single #'",
        r'D="line\nbreak \"q\""',
        "E=",
        "F=${HOME}",
        "G=a#b",
    ]
    (tmp_path / ".env").write_text("\n".join(lines))
    found = spec({"command": "x", "env": {"A": "mine"}, "envFile": ".env"}, file=tmp_path / "mcp.json")
    assert dict(found.env) == {
        "A": "mine",
        "B": "two words",
        "C": "single #",
        "D": 'line\nbreak "q"',
        "E": "",
        "F": "${HOME}",
        "G": "a#b",
    }
    assert "two words" in found.secrets


def test_lines_of_an_env_file_that_cannot_be_read_are_all_placed_and_never_quoted(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("GOOD=1\ns3cr3t\nX='s3cr3t\n")
    found = problems({"command": "x", "envFile": ".env"}, file=tmp_path / "mcp.json")
    assert [(problem.file, problem.line) for problem in found] == [(env, 2), (env, 3)]
    assert "s3cr3t" not in "".join(problem.message + problem.hint for problem in found)


def test_an_env_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    (problem,) = problems({"command": "x", "envFile": ".env"}, file=tmp_path / "mcp.json")
    assert "UTF-8" in problem.message
    (problem,) = problems({"command": "x", "envFile": "."}, file=tmp_path / "mcp.json")
    assert "directory" in problem.message
    (problem,) = problems({"command": "x", "envFile": "/dev/zero"})
    assert "larger than 1 MiB" in problem.message


# Secrets


@pytest.mark.requirement("MSG-6")
def test_the_secrets_of_a_server_are_known() -> None:
    remote = spec(
        {
            "url": "https://user:p%40ss@example.com/mcp?api_key=queried&page=plain&x=${TOKEN}",
            "headers": {"Authorization": "Bearer abc"},
        },
        TOKEN="expanded",
    )
    assert {"user", "p%40ss", "p@ss", "queried", "expanded", "Bearer abc"} <= remote.secrets
    assert "plain" not in remote.secrets
    local = spec(
        {
            "command": "x",
            "args": ["--api-key", "one", "--token=two", "-e", "DB_PASSWORD=three", "--header", "Authorization: four",
                     "postgres://me:five@db/x", "--token-file", "/etc/token", "--verbose", "${DEPTH:-six}"],
            "env": {"A": "seven"},
        }
    )  # fmt: skip
    assert {"one", "two", "three", "four", "five", "seven"} <= local.secrets
    assert not {"six", "/etc/token", "--verbose", "x"} & local.secrets


@pytest.mark.requirement("MSG-6")
def test_no_repr_and_no_problem_shows_a_secret() -> None:
    definition = {
        "url": "https://u:s3cr3t@host/mcp?key=s3cr3t",
        "headers": {"X": "s3cr3t"},
    }
    assert "s3cr3t" not in repr(spec(definition))
    assert "s3cr3t" not in repr(spec({"command": "x", "args": ["--key", "s3cr3t"], "env": {"A": "s3cr3t"}}))
    bad = [
        {"url": "s3cr3t@host"},
        {"url": "https://u:s3cr3t@host:x/"},
        {"command": "run --token s3cr3t"},
        {"command": "x", "args": "s3cr3t"},
        {"command": "x", "env": "s3cr3t"},
        {"command": "x", "prefix": "s3cr3t s3cr3t"},
        {"command": "x", "enabled": "s3cr3t"},
        {"command": "${S}/a b", "cwd": "${S", "envFile": "${S}"},
        {"url": "https://${S}:${S}/"},
        {"url": "https://h", "headers": {"X": "s3cr3t\n"}, "type": "stdio"},
    ]
    for definition in bad:  # type: ignore[assignment]  # each of another shape
        for problem in problems(definition, S="s3cr3t"):
            assert "s3cr3t" not in repr(problem), problem


names = st.sampled_from([*keys_of(ServerFile), *list(SERVER_KEYS)[:3], "other", ""])
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([URL, "${X}", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(names, anything, max_size=6) | anything)
def test_no_definition_raises_whatever_stands_in_it(definition: object) -> None:
    text = json.dumps({"mcpServers": {"s": definition}}, allow_nan=False, default=str) if _is_json(definition) else "{}"
    read(text)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return False
    return True


@pytest.mark.requirement("FLEET-6")
def test_a_server_that_is_placed_on_one_replica_is_refused_with_advice_to_give_it_a_hub() -> None:
    (problem,) = problems({"command": "x", "placement": "one"})
    assert "runs on each replica" in problem.message
    assert '{"hub": "HOST:PORT"}' in problem.hint


@pytest.mark.requirement("FLEET-6")
def test_the_old_placement_on_each_replica_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert spec({"command": "x", "placement": "each"}).transport == "stdio"
    assert "`placement` is an old key without effect" in caplog.text
