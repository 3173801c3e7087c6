"""``holdfast serve``, run as its users run it: as a process, with clients, edits and signals."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.config.read import config_from_mapping
from holdfast.errors import CallFailed
from holdfast.files import replace_file
from holdfast.hub.loader import Loader
from holdfast.serve.listening import tell_addresses
from holdfast.serve.options import ServeConfig, Serving
from holdfast.testing import Fault, HttpServer, StdioServer
from tests.cli.serve_process import COMMAND, Served, config, environment, run, served, spawned
from tests.harness import waiting

pytestmark = pytest.mark.anyio

CLIENT = {"name": "test", "version": "1"}
TOKEN = "a-token-that-is-long-enough"
STRANGE_KEYS = ["--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-keys", "http://id.example/keys"]


async def status(url: str, **headers: str) -> int:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(url, headers=headers)).status_code


async def ready(hub: Served) -> None:
    await waiting.ready(hub.url.replace("/mcp", "/readyz"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.mark.requirement("HUB-1")
async def test_every_server_of_a_file_is_behind_one_endpoint(tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "one"}) as one:
        async with HttpServer({"b": "two"}) as two:
            file = config(tmp_path / "mcp.json", one=one.definition, two=two.definition)
            async with served(home, "--config", str(file)) as hub:
                assert await status(hub.url.replace("/mcp", "/healthz")) == 200
                await ready(hub)
                names = [tool.name for tool in (await hub.tools()).tools]
                assert {"one__a", "two__b"} <= set(names)
                assert (await hub.call("one__a")).text == "one"
                assert (await hub.call("two__b")).text == "two"
                alone = await hub.loader("/servers/two/mcp").call("hub", "b", {})
                assert alone.text == "two"
                hub.send(signal.SIGTERM)
                assert await hub.ended() == 0


@pytest.mark.requirement("LIFE-21")
async def test_it_lists_the_last_good_catalog_at_once(tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with served(home, "--config", str(file)) as hub:
            await ready(hub)
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
        one.fail(Fault.HANG)
        async with served(home, "--config", str(file)) as hub:
            assert "one__a" in [tool.name for tool in (await hub.tools()).tools]


class Gate:
    """A tool that answers when it may; ``asked`` is set when so many calls wait for it."""

    def __init__(self, calls: int) -> None:
        self.asked, self.may_answer = anyio.Event(), anyio.Event()
        self._missing = calls

    async def __call__(self, _: object) -> str:
        self._missing -= 1
        if not self._missing:
            self.asked.set()
        await self.may_answer.wait()
        return "done all the same"


async def test_calls_under_way_at_sigterm_are_finished_and_no_new_one_is_taken(tmp_path: Path, home: Path) -> None:
    calls = 16
    slow = Gate(calls)
    async with HttpServer({"slow": slow}) as server:
        file = config(tmp_path / "mcp.json", it=server.definition)
        async with served(home, "--config", str(file), "--drain", "60") as hub, anyio.create_task_group() as tasks:
            await ready(hub)
            answers: list[str] = []

            async def call() -> None:
                answers.append((await hub.call("it__slow")).text)

            for _ in range(calls):
                tasks.start_soon(call)
            with anyio.fail_after(30):
                await slow.asked.wait()
            hub.send(signal.SIGTERM)
            await hub.said("shutting down: new calls are refused")
            with pytest.raises(httpx2.ConnectError):
                await status(hub.url.replace("/mcp", "/healthz"))
            slow.may_answer.set()
            assert await hub.ended() == 0
        assert answers == ["done all the same"] * calls


async def test_over_stdio_a_call_under_way_at_sigterm_is_finished(tmp_path: Path, home: Path) -> None:
    slow = Gate(1)
    async with HttpServer({"slow": slow}) as server:
        file = config(tmp_path / "mcp.json", it=server.definition)
        command = [*COMMAND, "serve", "--stdio", "--own", "--config", str(file), "--drain", "60"]
        async with spawned(command, tmp_path, home) as hub:
            await hub.tell("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=CLIENT)
            await hub.said('"serverInfo"')
            await hub.tell("tools/call", name="it__slow", arguments={})
            with anyio.fail_after(30):
                await slow.asked.wait()
            hub.send(signal.SIGTERM)
            await hub.said("shutting down: new calls are refused")
            slow.may_answer.set()
            assert await hub.ended() == 0
            await hub.said("done all the same")


@pytest.mark.parametrize("how", ["a bound", "a second signal"])
async def test_a_call_that_does_not_end_does_not_keep_the_hub(tmp_path: Path, home: Path, how: str) -> None:
    asked = anyio.Event()

    async def never(_: object) -> str:
        asked.set()
        await anyio.sleep_forever()
        return ""

    async with HttpServer({"never": never}) as server:
        file = config(tmp_path / "mcp.json", it=server.definition)
        bound = "0.2" if how == "a bound" else "600"
        async with served(home, "--config", str(file), "--drain", bound) as hub, anyio.create_task_group() as tasks:
            await ready(hub)

            async def call() -> None:
                with pytest.raises(CallFailed):
                    await hub.call("it__never")

            tasks.start_soon(call)
            with anyio.fail_after(30):
                await asked.wait()
            hub.send(signal.SIGINT)
            await hub.said("shutting down: new calls are refused")
            if how == "a second signal":
                hub.send(signal.SIGINT)
            assert await hub.ended() == 0
            assert "some calls did not finish" in hub.err or "second signal" in hub.err


async def test_an_edit_of_the_file_is_in_force_without_a_restart(tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "1"}) as one, StdioServer({"b": "2"}) as two:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with served(home, "--config", str(file)) as hub:
            await ready(hub)
            file.write_text('{"mcpServers": {')
            await hub.said("the running configuration stays in force")
            config(file, one=one.definition, two=two.definition)
            await hub.said("added: two")
            await ready(hub)
            assert (await hub.call("two__b")).text == "2"
            assert len(one.pids) == 1


async def test_without_watching_sighup_reads_the_file_again(tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "1"}) as one, StdioServer({"b": "2"}) as two:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with served(home, "--config", str(file), "--no-watch") as hub:
            await ready(hub)
            config(file, one=one.definition, two=two.definition)
            hub.send(signal.SIGHUP)
            await hub.said("added: two")


async def test_on_a_terminal_sighup_says_that_it_was_closed(tmp_path: Path, home: Path) -> None:
    home.mkdir()  # noqa: ASYNC240 - nothing else waits for the loop
    ours, theirs = os.openpty()
    command = [*COMMAND, "serve", "--port", "0", "--config", str(config(tmp_path / "mcp.json"))]
    env = environment(home)
    async with await anyio.open_process(command, cwd=tmp_path, env=env, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        hub = Served(process, home)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hub.follow, process.stdout, "out")
                await hub.said("ready when:")
                hub.send(signal.SIGHUP)
                assert await hub.ended() == 0
        finally:
            os.close(ours)
            if process.returncode is None:
                process.kill()


async def test_over_stdio_the_first_call_of_the_first_run_finds_its_tool(tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        command, *args = [*COMMAND, "serve", "--stdio", "--own", "--config", str(file)]
        client = {"command": command, "cwd": str(tmp_path), "args": args, "env": environment(home)}
        with anyio.fail_after(60):
            loader = Loader(config_from_mapping({"mcpServers": {"hub": client}}))
            assert (await loader.call("hub", "one__a", {})).text == "one"


async def test_over_stdio_sigterm_ends_it_though_the_client_keeps_the_pipe(tmp_path: Path, home: Path) -> None:
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        async with spawned([*COMMAND, "serve", "--stdio", "--own", "--config", str(file)], tmp_path, home) as hub:
            await hub.said("one: connected")
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
            assert hub.out == ""


async def test_without_a_file_it_serves_the_demo_fleet_and_leaves_nothing_when_killed(home: Path) -> None:
    async with served(home) as hub:
        assert "this serves demo servers" in hub.err
        await ready(hub)
        assert "rope" in (await hub.call("notes__list_notes")).text
        told = (await hub.call("holdfast_status")).text
        assert "calender-mcp" in told
        hub.send(signal.SIGKILL)
        await hub.ended()


# Who may call


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])
def test_beyond_this_machine_it_does_not_listen_without_a_token(home: Path, host: str) -> None:
    ran = run("serve", "--demo", "--host", host, "--port", "0", home=home)
    assert ran.returncode == 2
    assert "--token-file" in ran.stderr
    assert ran.stdout == ""


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize(
    ("host", "names", "needs"),
    [("0.0.0.0", (), True), ("::", (), True), ("0.0.0.0", ("hub.example.com",), False), ("10.0.0.7", (), False)],
)
def test_a_hub_for_other_machines_says_that_requests_need_a_name(
    host: str, names: tuple[str, ...], needs: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast")
    serving = Serving(options=ServeConfig(allow_host=list(names)), config=None, host=host)
    tell_addresses(serving, config_from_mapping({"mcpServers": {}}), sign_in_code=lambda: "")
    assert "MCP endpoint: http://" in capsys.readouterr().out
    assert ("--allow-host NAME" in caplog.text) is needs


@pytest.mark.requirement("SEC-18")
async def test_named_tokens_and_a_trusted_gateway_let_their_callers_in(tmp_path: Path, home: Path) -> None:
    tokens, secret = tmp_path / "tokens.json", tmp_path / "secret"
    named = {"name": "build", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "groups": ["ci"]}
    replace_file(tokens, json.dumps({"tokens": [named]}))
    replace_file(secret, "secret-of-the-gateway\n")
    given = ("--tokens-file", str(tokens), "--gateway-secret-file", str(secret))
    async with served(home, "--config", str(config(tmp_path / "mcp.json")), *given) as hub:
        url = hub.url.replace("/mcp", "/metrics")
        forged = await status(hub.url, **{"x-forwarded-user": "ada"})
        by_gateway = {"x-forwarded-user": "ada", "holdfast-gateway-secret": "secret-of-the-gateway"}
        answers = [await status(hub.url), forged, await status(hub.url, **by_gateway)]
        answers.append(await status(url, authorization=f"Bearer {TOKEN}"))
    assert answers[:2] == [401, 401]
    assert answers[2] != 401
    assert answers[3] == 200


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("how", ["option", "file", "variable"])
async def test_with_a_token_only_its_holder_is_served(tmp_path: Path, home: Path, how: str) -> None:
    file = tmp_path / "token"
    replace_file(file, TOKEN + "\n")
    given = {"option": ["--token", TOKEN], "file": ["--token-file", str(file)], "variable": []}[how]
    environ = {"HOLDFAST_TOKEN": TOKEN} if how == "variable" else {}
    empty = config(tmp_path / "mcp.json")
    async with served(home, "--config", str(empty), *given, **environ) as hub:
        assert await status(hub.url) == 401
        assert (await hub.tools(Authorization="Bearer wrong")).denied == ["hub"]
        assert (await hub.tools(Authorization=f"Bearer {TOKEN}")).available == ["hub"]
        assert TOKEN not in hub.out + hub.err


@pytest.mark.requirement("SEC-2")
async def test_a_changed_token_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path, home: Path) -> None:
    file, newer = tmp_path / "token", "another-token-that-is-long-enough"
    replace_file(file, TOKEN)
    async with served(home, "--config", str(config(tmp_path / "mcp.json")), "--token-file", str(file)) as hub:
        replace_file(file, "short")
        await hub.said("fewer than 16 characters; the last token stays valid")
        assert (await hub.tools(Authorization=f"Bearer {TOKEN}")).available == ["hub"]
        replace_file(file, newer)
        await hub.said("callers need the new token")
        assert (await hub.tools(Authorization=f"Bearer {TOKEN}")).denied == ["hub"]
        assert (await hub.tools(Authorization=f"Bearer {newer}")).available == ["hub"]
        assert newer not in hub.out + hub.err


@pytest.mark.requirement("SEC-2")
async def test_with_an_issuer_only_callers_with_its_signed_token_are_served(tmp_path: Path, home: Path) -> None:
    key, other_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    claims = {"iss": "https://id.example", "aud": "hub", "sub": "ada", "exp": time.time() + 600}
    options = ["--jwt-issuer", "https://id.example", "--jwt-audience", "hub", "--jwt-keys", str(pem)]
    async with served(home, "--config", str(config(tmp_path / "mcp.json")), *options) as hub:
        own, forged = (jwt.encode(claims, by, algorithm="ES256") for by in (key, other_key))
        assert await status(hub.url) == 401
        assert (await hub.tools(Authorization=f"Bearer {forged}")).denied == ["hub"]
        assert (await hub.tools(Authorization=f"Bearer {own}")).available == ["hub"]


@pytest.mark.requirement("SEC-2")
async def test_only_callers_who_name_it_rightly_are_served(tmp_path: Path, home: Path) -> None:
    empty = config(tmp_path / "mcp.json")
    async with served(home, "--config", str(empty), "--allow-host", "hub.internal") as hub:
        assert await status(hub.url.replace("/mcp", "/healthz"), Host="evil.example") == 421
        assert await status(hub.url.replace("/mcp", "/healthz"), Host="hub.internal") == 200
        assert await status(hub.url.replace("/mcp", "/healthz"), Origin="https://evil.example") == 403


# What goes wrong before it starts


@pytest.mark.requirement("DX-13")
async def test_a_port_that_is_in_use_is_told_with_the_command_that_names_its_owner(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ran = await anyio.to_thread.run_sync(lambda: run("serve", "--demo", "--port", port, home=home))
    assert_told(ran, f"port {port} of 127.0.0.1 is in use", "--port 0")
    names = f"ss -ltnp 'sport = :{port}'" if sys.platform == "linux" else f"lsof -iTCP:{port}"
    assert names in ran.stderr


@pytest.mark.requirement("DX-13")
async def test_a_port_that_another_hub_of_this_user_has_is_told_with_that_hub(home: Path, tmp_path: Path) -> None:
    file = config(tmp_path / "mcp.json")
    async with served(home, "--config", str(file)) as hub:
        port = str(urlsplit(hub.url).port)
        ran = await anyio.to_thread.run_sync(lambda: run("serve", "--demo", "--port", port, home=home))
    assert_told(ran, f"in use by your hub of {file} (process ", "use that hub, or end it, use another port")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--host", "no.such.host.invalid", "--token", TOKEN], "cannot be resolved", "--host 127.0.0.1"),
        (["--host", "192.0.2.1", "--token", TOKEN], "192.0.2.1 is not an address of this machine", "127.0.0.1"),
        (["--token-file", "/no/such/file"], "cannot read the token file /no/such/file", "path"),
        (["--config", "/no/such/file"], "the file does not exist", "--config"),
    ],
)
def test_what_cannot_be_served_is_told(home: Path, arguments: list[str], message: str, hint: str) -> None:
    assert_told(run("serve", "--port", "0", *arguments, home=home), message, hint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--token", "short"], "fewer than 16 characters"),
        (["--token", TOKEN, "--token-file", "x"], "exclude each other"),
        (["--token", ""], "--token is empty"),
        (["--host", ""], "--host is empty"),
        (["--allow-host", "hub.example", "--allow-host", ""], "--allow-host is empty"),
        (["--token", TOKEN, *STRANGE_KEYS], "unencrypted"),
        (["--jwt-issuer", "https://id.example"], "belong together"),
        (["--demo", "--config", "x"], "exclude each other"),
        (["--port", "70000"], "65535"),
        (["--stdio", "--own", "--profile", "gone"], "there is no profile `gone`"),
    ],
)
def test_wrong_usage_is_told(home: Path, arguments: list[str], message: str) -> None:
    ran = run("serve", "--port", "0", *arguments, home=home)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "connecting" not in ran.stderr, "no server is started for it"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_addresses_that_cannot_be_written_end_the_start_with_the_reason(home: Path) -> None:
    home.mkdir()
    command = [*COMMAND, "serve", "--port", "0"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command,
            cwd=home,
            env=environment(home),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert ran.returncode == 1
    assert "error: cannot write the output: No space left on device" in ran.stderr
    assert "bug" not in ran.stderr


def assert_told(ran: subprocess.CompletedProcess[str], message: str, hint: str) -> None:
    assert ran.returncode == 1
    assert message in ran.stderr
    assert hint in ran.stderr.partition("hint:")[2]
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""
