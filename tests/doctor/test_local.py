"""What is found without leaving the machine: definitions, commands, and processes that end."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import get_tools_with_resilience
from holdfast.config.fields import parse_duration
from tests.cli.command import stdio
from tests.doctor.examination import Examination
from tests.harness.served_hub import front
from tests.peers.everything import everything_args, node
from tests.peers.stdio import StdioPeer

OUTPUTS = Path(__file__).parents[1] / "core" / "outputs"

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-2", "DOC-4", "DOC-8")]

Make = Callable[..., StdioPeer]


def script(folder: Path, name: str, text: str, *, mode: int = 0o755) -> str:
    file = folder / name
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def dying(words: str, code: int = 1) -> dict[str, object]:
    """A server that writes to stderr and ends."""
    program = f"import sys; sys.stderr.write({words!r}); sys.exit({code})"
    return {"command": sys.executable, "args": ["-I", "-S", "-c", program]}


async def test_a_healthy_server_is_told_with_what_was_seen_of_it(clinic: Examination, stdio_peer: Make) -> None:
    server = await clinic.one(stdio(stdio_peer("--tools", "3")))
    assert (server.health, server.tools) == ("healthy", 3)
    assert [(result.check, result.status) for result in server.checks] == [
        ("definition", "passed"),
        ("command", "passed"),
        ("handshake", "passed"),
        ("tools", "passed"),
    ]
    assert server.checks[3].seen.startswith("3 tools listed in ")


@pytest.mark.requirement("DOC-1")
async def test_a_server_that_lists_by_what_its_client_can_do_is_seen_as_the_hub_sees_it(clinic: Examination) -> None:
    definition = {"command": str(node()), "args": list(everything_args())}
    server = await clinic.one(definition)
    async with front({"it": definition}) as served:
        assert server.tools == len(served.hub.tools())
    # A plain load has no client to ask, and says so: the server leaves out the tools that could not work.
    alone, _, _ = await get_tools_with_resilience({"it": {"transport": "stdio", **definition}})
    assert server.tools > len(alone)


async def test_every_missing_variable_is_named_and_setting_them_is_the_cure(
    clinic: Examination, stdio_peer: Make
) -> None:
    peer = stdio_peer()
    server = await clinic.one(
        stdio(peer, env={"A": "${env:CLINIC_A}", "B": "${CLINIC_B}", "C": "${CLINIC_A}-${CLINIC_C:-c}"})
    )
    assert [found.code for found in server.findings] == ["HF-VARIABLE", "HF-VARIABLE"]
    clinic.matches("variables", server.findings)
    for found in server.findings:
        clinic.carry_out(found, CLINIC_A="aaaa", CLINIC_B="bbbb")
    assert (await clinic.one()).health == "healthy"


async def test_everything_wrong_in_a_definition_is_told_with_its_place(clinic: Examination) -> None:
    server = await clinic.one({"comand": "x", "url": 5, "headers": ["a"]})
    assert {found.code for found in server.findings} == {"HF-DEFINITION"}
    clinic.matches("definition", server.findings)
    assert {result.status for result in server.checks[1:]} == {"skipped"}


async def test_a_misspelt_command_is_corrected_by_the_nearest_on_path(clinic: Examination, stdio_peer: Make) -> None:
    peer = stdio_peer()
    folder = clinic.folder / "bin"
    folder.mkdir()
    (folder / "clinic-runtime").symlink_to(peer.command)
    path = f"{folder}{os.pathsep}/bin"
    definition = {**stdio(peer), "command": "clinic-runtme", "env": {"PATH": path}}
    found = await clinic.found(definition)
    clinic.matches("command_misspelt", found)
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


@pytest.mark.parametrize("command", ["npx", "uvx", "mcp-server-clinic"])
async def test_a_command_that_is_not_installed_is_told_with_what_has_it(clinic: Examination, command: str) -> None:
    found = await clinic.found({"command": command, "args": ["x"], "env": {"PATH": str(clinic.folder / "bin")}})
    clinic.matches(f"command_{command}", found)


async def test_a_file_that_is_not_there_is_corrected_by_its_neighbour(clinic: Examination, stdio_peer: Make) -> None:
    peer = stdio_peer()
    (clinic.folder / "serve-files").symlink_to(peer.command)
    found = await clinic.found({**stdio(peer), "command": "./serve-file"})
    assert found.code == "HF-COMMAND-MISSING"
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


async def test_a_script_without_its_run_bit_gets_it(clinic: Examination, stdio_peer: Make) -> None:
    peer = stdio_peer()
    words = " ".join(f"'{word}'" for word in (peer.command, *peer.args))
    script(clinic.folder, "serve.sh", f"#!/bin/sh\nexec {words}\n", mode=0o644)
    found = await clinic.found({"command": "./serve.sh"})
    clinic.matches("run_bit", found)
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


async def test_a_folder_that_is_not_there_is_made(clinic: Examination, stdio_peer: Make) -> None:
    found = await clinic.found(stdio(stdio_peer(), cwd="./work/here"))
    clinic.matches("folder", found)
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


async def test_a_script_without_a_first_line_is_given_to_its_interpreter(clinic: Examination, stdio_peer: Make) -> None:
    peer = stdio_peer()
    body = f"import os\nos.execv({peer.command!r}, {[peer.command, *peer.args]!r})\n"
    script(clinic.folder, "serve.py", body)
    found = await clinic.found({"command": "./serve.py"})
    clinic.matches("no_first_line", found)
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


@pytest.mark.parametrize("first", ["#!/no/such/python", "#!/usr/bin/env clinic-python"])
async def test_a_script_whose_interpreter_is_gone_says_which(clinic: Examination, first: str) -> None:
    script(clinic.folder, "serve", f"{first}\n")
    script(clinic.folder, "python", "")
    found = await clinic.found({"command": "./serve", "env": {"PATH": f"{clinic.folder}/."}})
    clinic.matches("interpreter_by_" + ("name" if "env" in first else "path"), found)


async def test_a_script_with_the_line_ends_of_windows_gets_those_of_this_system(
    clinic: Examination, stdio_peer: Make
) -> None:
    peer = stdio_peer()
    script(clinic.folder, "serve", f"#!/bin/sh\r\nexec {shlex.join([peer.command, *peer.args])}\r\n")
    found = await clinic.found({"command": "./serve"})
    assert found.code == "HF-COMMAND-INTERPRETER"
    assert "end as on Windows" in found.words
    clinic.carry_out(found)
    assert (await clinic.one()).health == "healthy"


async def test_a_folder_is_no_program_and_gets_no_run_bit(clinic: Examination) -> None:
    (clinic.folder / "server").mkdir()
    found = await clinic.found({"command": "./server"})
    assert found.words == f"`{clinic.folder / 'server'}` is a folder, not a program"
    assert found.remedy.commands == (f"ls -l -- {clinic.folder / 'server'}",)


async def test_a_runner_that_is_not_installed_is_not_taken_for_another_one(clinic: Examination) -> None:
    script(clinic.folder, "npm", "#!/bin/sh\n")
    found = await clinic.found({"command": "pnpm", "args": ["dlx", "x"], "env": {"PATH": str(clinic.folder)}})
    assert (found.code, found.remedy.edits) == ("HF-COMMAND-MISSING", ())
    assert found.remedy.text == "`pnpm` is part of pnpm: install it (https://pnpm.io/installation)"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one argument may be that long")
async def test_a_command_that_the_system_refuses_to_start_is_told_with_its_reason(clinic: Examination) -> None:
    found = await clinic.found({"command": "/bin/echo", "args": ["x" * 200_000]})
    assert found.code == "HF-COMMAND-START"
    shown = re.sub(r"x{1000,}( … \(cut\))?", "XXX", found.remedy.commands[0])
    short = found.remedy.model_copy(update={"commands": (shown,)})
    clinic.matches("command_start", found.model_copy(update={"remedy": short}))


async def test_what_nobody_foresaw_is_told_as_a_fault_of_ours(
    clinic: Examination, stdio_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object, **options: object) -> None:
        raise RuntimeError("this was not expected")

    monkeypatch.setattr("holdfast.wire.dial.negotiate", fail)
    clinic.matches("unexpected", await clinic.found(stdio(stdio_peer())))
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    (found,) = (await clinic.one()).findings
    assert "RuntimeError: this was not expected" in found.detail


async def test_a_server_that_exits_at_once_is_told_with_its_last_words(clinic: Examination) -> None:
    found = await clinic.found(dying("cannot open the vault\nbecause it is Sunday\n", code=3))
    clinic.matches("exited", found)


async def test_a_variable_that_a_server_asks_for_is_put_into_its_definition(clinic: Examination) -> None:
    peer = StdioPeer(folder=clinic.folder)
    program = (
        "import os, sys\n"
        "if not os.environ.get('CLINIC_KEY'): sys.exit('error: CLINIC_KEY is not set')\n"
        f"os.execv({peer.command!r}, {[peer.command, *peer.args]!r})"
    )
    found = await clinic.found({"command": sys.executable, "args": ["-c", program]})
    clinic.matches("exit_variable", found)
    clinic.carry_out(found, CLINIC_KEY="opensesame")
    assert (await clinic.one()).health == "healthy"


async def test_a_variable_that_is_empty_is_one_that_the_server_lacks(clinic: Examination) -> None:
    found = await clinic.found({**dying("KeyError: 'CLINIC_KEY'"), "env": {"CLINIC_KEY": ""}})
    assert found.code == "HF-EXIT-VARIABLE"
    assert found.words.endswith("It needs `CLINIC_KEY`, which is empty")
    assert [edit.value for edit in found.remedy.edits] == ['"${env:CLINIC_KEY}"']
    assert found.remedy.commands == ("read -rs CLINIC_KEY && export CLINIC_KEY",)


async def test_a_crash_is_a_sentence(clinic: Examination) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    found = await clinic.found({"command": sys.executable, "args": ["-I", "-S", "-c", program]})
    assert found.words == "its process was killed by signal 11 before it was ready"


async def test_a_variable_that_is_exported_but_not_passed_on_is_told_apart(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLINIC_KEY", "opensesame")
    found = await clinic.found(dying("KeyError: 'CLINIC_KEY'"))
    assert found.code == "HF-EXIT-VARIABLE"
    assert "exported here, but servers get only the variables in `env`" in found.words
    assert found.remedy.commands == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("python", "ERROR: Package 'x' requires a different Python: 3.9.1 not in '>=3.12'\n"),
        ("tomllib", "ModuleNotFoundError: No module named 'tomllib'\n"),
        ("node", "npm warn EBADENGINE   required: { node: '>=20' },\n"),
        ("node_syntax", "SyntaxError: Unexpected token '??='\n"),
    ],
)
async def test_a_server_that_wants_another_runtime_says_which_it_got(
    clinic: Examination, name: str, words: str
) -> None:
    (clinic.folder / "node").write_text("#!/bin/sh\necho v12.0.0\n")
    (clinic.folder / "node").chmod(0o755)
    definition = {**dying(words), "env": {"PATH": f"{clinic.folder}{os.pathsep}{os.environ['PATH']}"}}
    found = await clinic.found(definition)
    assert found.code == "HF-EXIT-RUNTIME"
    version = "v12.0.0" if "node" in name else f"Python {sys.version.split()[0]}"
    assert version in found.words
    clinic.matches(f"runtime_{name}", found.model_copy(update={"words": found.words.replace(version, "VERSION")}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("python", "ModuleNotFoundError: No module named 'clinic_tools'\n"),
        ("node", "Error: Cannot find module 'clinic-tools'\n"),
        ("node_file", "Error: Cannot find module '/srv/dist/index.js'\n"),
    ],
)
async def test_a_module_that_is_missing_is_named(clinic: Examination, name: str, words: str) -> None:
    found = await clinic.found(dying(words))
    assert found.code == "HF-EXIT-MODULE"
    clinic.matches(f"module_{name}", found)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sdk", "AttributeError: 'Server' object has no attribute 'list_resources'\n"),
        ("other", "ImportError: cannot import name 'x' from 'clinic' (/srv/site-packages/clinic.py)\n"),
    ],
)
async def test_a_server_for_another_version_of_a_package_is_told_which(
    clinic: Examination, name: str, words: str
) -> None:
    found = await clinic.found(dying(words))
    assert found.code == "HF-EXIT-VERSION"
    clinic.matches(f"version_{name}", found)


async def test_a_command_to_run_a_server_by_hand_does_not_change_the_home_of_the_shell(clinic: Examination) -> None:
    found = await clinic.found({**dying("it ends\n"), "env": {"HOME": str(clinic.folder), "TOKEN": "t0p-s3cret"}})
    *asked, by_hand = found.remedy.commands
    assert asked == ["read -rs TOKEN && export TOKEN"]
    assert f"HOME={clinic.folder} " in by_hand
    assert "t0p-s3cret" not in by_hand


async def test_a_service_that_does_not_answer_is_named(clinic: Examination) -> None:
    found = await clinic.found(dying("[Redis Error] Stack: Error: connect ECONNREFUSED ::1:6379\n"))
    assert found.code == "HF-EXIT-ADDRESS"
    clinic.matches("address", found)
    elsewhere = await clinic.found(dying("Error: getaddrinfo ENOTFOUND db.clinic.example\n"))
    assert "check that this machine can reach it" in elsewhere.remedy.text


async def test_a_port_that_another_program_has_is_named(clinic: Examination) -> None:
    found = await clinic.found(dying("Error: listen EADDRINUSE: address already in use :::3001\n"))
    assert found.code == "HF-EXIT-PORT"
    clinic.matches("port", found)


@pytest.mark.parametrize("words", ["No module named 'httpx'", "No module named 'mcp.server.fastmcp'"])
async def test_what_a_server_of_uvx_lacks_is_installed_beside_it(clinic: Examination, words: str) -> None:
    (clinic.folder / "uvx").write_text(f'#!/bin/sh\necho "ModuleNotFoundError: {words}" >&2\nexit 1\n')
    (clinic.folder / "uvx").chmod(0o755)
    found = await clinic.found({"command": "./uvx", "args": ["clinic-server", "--db", "a b"]})
    clinic.matches(f"uvx_with_{'sdk' if 'mcp' in words else 'module'}", found)
    secret = await clinic.found({"command": "./uvx", "args": ["clinic-server", "${env:HOME}"]})
    assert not secret.remedy.edits, "the value of a reference would be written"


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        ("npx", "npm error code E404\nnpm error 404  '@clinic/serverr@*' is not in this registry.\n"),
        ("uvx", "  × No solution found\n  Because clinic-serverr was not found in the package registry and you\n"),
    ],
)
async def test_a_package_that_does_not_exist_is_named(clinic: Examination, runner: str, words: str) -> None:
    (clinic.folder / runner).write_text(f"#!/bin/sh\nprintf '%s' \"{words}\" >&2\nexit 1\n")
    (clinic.folder / runner).chmod(0o755)
    found = await clinic.found({"command": f"./{runner}"})
    assert found.code == "HF-EXIT-PACKAGE"
    clinic.matches(f"package_{runner}", found)


def printing(clinic: Examination, runner: str, sample: str) -> str:
    """A package runner that prints what a real one printed, and fails; gives its command."""
    output = clinic.folder / f"{sample}.txt"
    output.write_text(OUTPUTS.joinpath(f"{sample}.txt").read_text())
    (clinic.folder / runner).write_text(f'#!/bin/sh\ncat "{output}" >&2\nexit 1\n')
    (clinic.folder / runner).chmod(0o755)
    return f"./{runner}"


async def test_a_package_that_a_package_needs_is_told_apart_from_one_that_is_misspelt(clinic: Examination) -> None:
    found = await clinic.found({"command": printing(clinic, "npx", "npxdep"), "args": ["-y", "@clinic/server@latest"]})
    assert found.code == "HF-EXIT-PACKAGE"
    clinic.matches("package_needed", found)


async def test_a_version_that_does_not_exist_is_told_apart_from_a_package_that_does_not(clinic: Examination) -> None:
    args = ["-y", "@modelcontextprotocol/server-github@99.99.99"]
    found = await clinic.found({"command": printing(clinic, "npx", "npxver"), "args": args})
    assert found.code == "HF-EXIT-PACKAGE"
    clinic.matches("package_version", found)


@pytest.mark.parametrize(
    ("args", "written"),
    [
        (["mcp-server-snowflake@latest"], ["--from", "mcp-server-snowflake@latest", "mcp_server_snowflake"]),
        (["--python", "3.12", "mcp_server-snowflake", "--x"], None),
        (["--from", "mcp-server-snowflake", "mcp-server-snowflake"], "mcp_server_snowflake"),
    ],
)
async def test_an_executable_of_another_name_is_named_with_its_package(
    clinic: Examination, args: list[str], written: object
) -> None:
    found = await clinic.found({"command": printing(clinic, "uvx", "uvxname"), "args": args})
    assert found.code == "HF-EXIT-EXECUTABLE"
    (edit,) = found.remedy.edits
    expected = written or ["--python", "3.12", "--from", "mcp_server-snowflake", "mcp_server_snowflake", "--x"]
    assert json.loads(edit.value) == expected
    clinic.carry_out(found)
    assert "mcp_server_snowflake" in clinic.spec().args
    if isinstance(written, list):
        clinic.matches("executable_name", found)


@pytest.mark.parametrize(("runner", "sample"), [("npx", "npxbin"), ("uvx", "uvxlibrary")])
async def test_a_package_without_an_executable_is_no_server(clinic: Examination, runner: str, sample: str) -> None:
    found = await clinic.found({"command": printing(clinic, runner, sample), "args": ["pydantic"]})
    assert found.code == "HF-EXIT-EXECUTABLE"
    clinic.matches(f"executable_none_{runner}", found)


@pytest.mark.parametrize(
    ("sample", "package", "successor"),
    [
        ("uvxyanked", "awslabs.cdk-mcp-server@latest", "awslabs.aws-iac-mcp-server"),
        ("uvxyanked_url", "awslabs.terraform-mcp-server", ""),
    ],
)
async def test_a_withdrawn_package_is_told_with_the_reason_and_its_successor(
    clinic: Examination, sample: str, package: str, successor: str
) -> None:
    found = await clinic.found({"command": printing(clinic, "uvx", sample), "args": ["--quiet", package]})
    assert found.code == "HF-EXIT-WITHDRAWN"
    clinic.matches(f"withdrawn_{'successor' if successor else 'none'}", found)
    assert [json.loads(edit.value) for edit in found.remedy.edits] == ([successor] if successor else [])


async def test_a_broken_release_is_replaced_by_an_earlier_one(clinic: Examination) -> None:
    command = printing(clinic, "npx", "npxsuffix")
    unknown = await clinic.found({"command": command, "args": ["-y", "@heroku/mcp-server"]})
    assert unknown.code == "HF-EXIT-BROKEN"
    assert unknown.remedy.commands == ("npm view @heroku/mcp-server versions",), "the release is not on this disk"
    package = clinic.folder / "node_modules" / "@heroku" / "mcp-server"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@heroku/mcp-server", "version": "1.2.8"}')
    output = clinic.folder / "npxsuffix.txt"
    output.write_text(output.read_text().replace("/home/ada/.npm/_npx/909ffbc9d45b7a62", str(clinic.folder)))
    found = await clinic.found({"command": command, "args": ["-y", "@heroku/mcp-server"]})
    clinic.matches("release_broken", found)
    clinic.carry_out(found)
    assert clinic.spec().args == ("-y", "@heroku/mcp-server@<1.2.8")
    again = await clinic.found({"command": command, "args": ["-y", "@heroku/mcp-server@<1.2.9"]})
    assert not again.remedy.edits, "an earlier release was tried, and is broken too"
    assert again.remedy.commands == ("npm view @heroku/mcp-server versions",)


async def test_a_version_that_uvx_does_not_find_is_replaced_by_the_current_one(clinic: Examination) -> None:
    args = ["--quiet", "mcp-server-time@99.9.9"]
    found = await clinic.found({"command": printing(clinic, "uvx", "uvxver"), "args": args})
    assert found.code == "HF-EXIT-PACKAGE"
    assert "no version `99.9.9` of the package `mcp-server-time`" in found.words
    clinic.carry_out(found)
    assert clinic.spec().args == ("--quiet", "mcp-server-time")


@pytest.mark.parametrize(
    ("args", "written"),
    [
        (["tool", "run", "server"], ["tool", "run", "--with", "pydantic<2.12", "server"]),
        (["run", "server.py"], ["run", "--with", "pydantic<2.12", "server.py"]),
    ],
)
async def test_an_option_of_uv_stands_where_uv_reads_it(
    clinic: Examination, args: list[str], written: list[str]
) -> None:
    found = await clinic.found({"command": printing(clinic, "uv", "pydantic_field"), "args": args})
    clinic.carry_out(found)
    assert list(clinic.spec().args) == written


@pytest.mark.parametrize("sample", ["pydantic_name", "pydantic_field"])
async def test_a_conflict_of_dependencies_gets_the_edit_that_ends_it(clinic: Examination, sample: str) -> None:
    found = await clinic.found({"command": printing(clinic, "uvx", sample), "args": ["clinic-server"]})
    assert found.code == "HF-EXIT-VERSION"
    clinic.matches("dependency_conflict" if sample == "pydantic_field" else "dependency_name", found)
    clinic.carry_out(found)
    assert clinic.spec().args == ("--with", "pydantic<2.12", "clinic-server")


async def test_a_dependency_that_changed_is_pinned_below_what_is_installed(clinic: Examination) -> None:
    command = printing(clinic, "uvx", "pyremoved")
    environment = clinic.folder / "lib" / "site-packages"
    (environment / "logfire-5.2.0.dist-info").mkdir(parents=True)
    output = clinic.folder / "pyremoved.txt"
    output.write_text(re.sub(r"/home/ada\S+?/site-packages", str(environment), output.read_text()))
    found = await clinic.found({"command": command, "args": ["logfire-mcp"]})
    clinic.matches("dependency_removed", found)
    clinic.carry_out(found)
    assert clinic.spec().args == ("--with", "logfire<5.2", "logfire-mcp")
    (environment / "logfire-5.2.0.dist-info").rename(environment / "logfire-5.1.3.dist-info")
    again = await clinic.found({"command": command, "args": list(clinic.spec().args)})
    clinic.carry_out(again)
    assert clinic.spec().args == ("--with", "logfire<5.1", "logfire-mcp"), "the earlier bound is replaced"


async def test_an_argument_that_a_server_needs_is_named(clinic: Examination) -> None:
    found = await clinic.found({"command": printing(clinic, "uvx", "flag"), "args": ["mcp-server-motherduck"]})
    assert found.code == "HF-EXIT-ARGUMENT"
    clinic.matches("argument", found)


@pytest.mark.parametrize("sample", ["brave", "gitlab"])
async def test_of_several_variables_that_would_do_one_is_asked_for(clinic: Examination, sample: str) -> None:
    found = await clinic.found({"command": printing(clinic, "npx", sample), "args": ["-y", "server"]})
    assert found.code == "HF-EXIT-VARIABLE"
    assert len(found.remedy.edits) == 1
    clinic.matches(f"variable_or_{sample}", found)


async def test_an_installation_of_npx_that_was_cut_off_is_removed_before_the_next_start(clinic: Examination) -> None:
    found = await clinic.found({"command": printing(clinic, "npx", "npxcut"), "args": ["-y", "task-master-ai"]})
    assert found.code == "HF-EXIT-MODULE"
    assert found.remedy.commands[0] == 'rm -rf -- "$(npm config get cache)"/_npx/0726791833487271'
    clinic.matches("npx_incomplete", found)


@pytest.mark.parametrize("said", ["", "npm warn deprecated node-domexception@1.0.0: use the platform's own"])
async def test_a_silent_npx_that_did_not_finish_its_installation_is_told_apart(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Warnings of npm come where all is well too: they say nothing of the reason."""
    monkeypatch.setenv("HOME", str(clinic.folder))
    program = f'#!/bin/sh\necho "{said}" >&2\nexit 1\n'
    silent = {"command": script(clinic.folder, "npx", program), "args": ["-y", "mcp-mermaid"]}
    found = await clinic.found(silent)
    assert found.code == "HF-EXITED"
    assert found.remedy.text.startswith("it printed no error; ")
    installed = clinic.folder / ".npm" / "_npx" / "b229ae5a79c0ddcd"  # npx's own name for `mcp-mermaid`
    installed.mkdir(parents=True)
    found = await clinic.found(silent)
    assert found.code == "HF-EXIT-MODULE"
    remove, install = found.remedy.commands
    assert remove == 'rm -rf -- "$(npm config get cache)"/_npx/b229ae5a79c0ddcd'
    assert install == 'cd "$(mktemp -d)" && npm install mcp-mermaid'
    (installed / "package.json").touch()
    assert (await clinic.found(silent)).code == "HF-EXITED", "npx writes that file at the end"


async def test_uvx_is_told_which_python_to_use(clinic: Examination) -> None:
    found = await clinic.found({"command": printing(clinic, "uvx", "uvxpython"), "args": ["dbt-mcp"]})
    assert found.code == "HF-EXIT-RUNTIME"
    clinic.matches("uvx_python", found)


@pytest.mark.parametrize(("runner", "variable"), [("npx", "NODE_EXTRA_CA_CERTS"), ("uvx", "SSL_CERT_FILE")])
async def test_a_certificate_that_a_runner_does_not_trust_is_told_apart(
    clinic: Examination, runner: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = printing(clinic, runner, f"{runner}cert")
    monkeypatch.setenv(variable, "/etc/company.pem")
    exported = await clinic.found({"command": command, "args": ["clinic-server"]})
    assert exported.code == "HF-EXIT-CERTIFICATE"
    clinic.matches(f"certificate_{runner}", exported)
    given = await clinic.found({"command": command, "args": ["clinic-server"], "env": {variable: "/etc/company.pem"}})
    assert not given.remedy.edits, "it has the variable already"
    monkeypatch.delenv(variable)
    (edit,) = (await clinic.found({"command": command, "args": ["clinic-server"]})).remedy.edits
    assert edit.keys == ("env", variable)
    assert not edit.certain, "the system may not trust it either"


async def test_the_variable_for_certificates_is_that_of_the_program_that_a_script_runs(clinic: Examination) -> None:
    (edit,) = (await clinic.found({"command": printing(clinic, "start.sh", "npxcert")})).remedy.edits
    assert edit.keys == ("env", "NODE_EXTRA_CA_CERTS")
    (edit,) = (await clinic.found({"command": printing(clinic, "run.sh", "uvxcert")})).remedy.edits
    assert edit.keys == ("env", "SSL_CERT_FILE")


async def test_the_error_before_a_long_usage_text_is_shown(clinic: Examination) -> None:
    usage = "\n".join(f"      --option-{number} string   what it is for" for number in range(30))
    found = await clinic.found(dying(f"Error: no contexts are defined in kubeconfig.\nUsage:\n{usage}\n"))
    assert found.code == "HF-EXITED"
    assert found.detail.splitlines()[:2] == ["Error: no contexts are defined in kubeconfig.", "…"]
    assert len(found.detail.splitlines()) == 12


async def test_a_server_that_was_killed_is_told_apart_from_one_that_failed(clinic: Examination) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    found = await clinic.found({"command": sys.executable, "args": ["-I", "-S", "-c", program]})
    clinic.matches("killed", found)


async def test_noise_on_stdout_is_a_warning_where_the_server_works(clinic: Examination, stdio_peer: Make) -> None:
    server = await clinic.one(stdio(stdio_peer("--banner")))
    assert (server.health, server.tools) == ("warned", 5)
    clinic.matches("noise", server.findings)


async def test_a_server_that_prints_pages_of_something_else_is_no_server(clinic: Examination, stdio_peer: Make) -> None:
    found = await clinic.found(stdio(stdio_peer("--garbage-flood")))
    clinic.matches("stdout_only", found)


async def test_a_server_that_stays_silent_is_told_how_long_it_was_waited_for(
    clinic: Examination, stdio_peer: Make
) -> None:
    found = await clinic.found(stdio(stdio_peer("--never-answer")), within=1.0)
    clinic.matches("silent", found)


@pytest.mark.requirement("LOAD-13")
async def test_the_remedy_for_a_silent_process_gives_it_more_time_than_it_has(
    clinic: Examination, stdio_peer: Make
) -> None:
    found = await clinic.found({**stdio(stdio_peer("--never-answer")), "startTimeout": "10m"}, within=0.5)
    [edit] = found.remedy.edits
    assert parse_duration(json.loads(edit.value)) > 600


@pytest.mark.requirement("DOC-9")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("docker_down", "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\nSee 'docker'.\n"),
        ("docker_image", "docker: Error response from daemon: pull access denied for acme/mcp, it may not exist\n"),
    ],
)
async def test_what_docker_says_is_recognised(clinic: Examination, name: str, words: str) -> None:
    found = await clinic.found(dying(words))
    assert found.code == "HF-EXIT-DOCKER"
    clinic.matches(name, found)
