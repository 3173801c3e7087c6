"""Who reaches a hub that runs: other users of the machine, floods, wrong credentials, TLS, rotated secrets.

The hub is a real process, and so are its attackers. One hub serves several tests where they do not disturb each other.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trustme

from holdfast.files import replace_file
from holdfast.serve.listening import keep_state_private
from holdfast.serve.options import ServeConfig, Serving
from holdfast.serve.run import allowed_hosts
from holdfast.testing import StdioServer
from tests.access.test_quotas import number_open
from tests.cli.serve_process import Served, config, run, served

pytestmark = pytest.mark.anyio

NOBODY = 65534
TOKEN = "token-of-the-callers-0123456789"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="to become another user takes root and setpriv"
)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the uid of a peer")


@pytest.mark.requirement("SEC-2")
async def test_an_ipv6_address_is_allowed_as_a_host_with_and_without_its_brackets() -> None:
    for written in ("fd00:10:244::1f", "[fd00:10:244::1f]"):
        serving = Serving(options=ServeConfig(allow_host=[written]), config=None, host="::")
        assert "[fd00:10:244::1f]" in allowed_hosts(serving)


_REQUEST = """
import http.client, json, sys
port, method, path, headers, body = sys.argv[1:6]
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
connection.request(method, path, body or None, json.loads(headers))
answer = connection.getresponse()
print(json.dumps([answer.status, answer.read().decode()]))
"""


async def request_as(
    uid: int, hub: Served, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """A request from a process of that user."""
    sent = json.dumps(body) if body is not None else ""
    done = await anyio.run_process(
        [
            *as_user(uid),
            sys.executable,
            "-c",
            _REQUEST,
            str(port_of(hub)),
            "POST" if body is not None else "GET",
            path,
            json.dumps({**HEADERS, **(headers or {})}),
            sent,
        ]
    )
    status, text = json.loads(done.stdout)
    return status, text


def port_of(hub: Served) -> int:
    return int(hub.url.rpartition(":")[2].partition("/")[0])


async def request(
    hub: Served,
    path: str = "/mcp",
    body: Any = INITIALIZE,
    *,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str], str]:
    """A request from this process."""

    def ask() -> tuple[int, dict[str, str], str]:
        made = (
            http.client.HTTPSConnection("127.0.0.1", port_of(hub), timeout=20, context=tls)
            if tls is not None
            else http.client.HTTPConnection("127.0.0.1", port_of(hub), timeout=20)
        )
        try:
            sent = json.dumps(body) if body is not None else None
            made.request("POST" if body is not None else "GET", path, sent, {**HEADERS, **(headers or {})})
            answer = made.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            made.close()

    return await anyio.to_thread.run_sync(ask)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def empty(folder: Path) -> Path:
    return config(folder / "mcp.json")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def own() -> AsyncIterator[Served]:
    """A hub without credentials. Other users can reach its home: pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)  # noqa: ASYNC240 - nothing else runs yet
        async with served(folder / "home", "--config", str(empty(folder))) as hub:
            yield hub


# Other users of this machine.


@pytest.mark.requirement("SEC-10")
@as_root
@on_linux
@pytest.mark.parametrize(
    ("path", "body"),
    [("/mcp", INITIALIZE), ("/servers/x/mcp", INITIALIZE), ("/api/hub", None), ("/", None), ("/metrics", None)],
)
async def test_another_user_of_the_machine_is_refused_on_every_path(own: Served, path: str, body: Any) -> None:
    status, text = await request_as(NOBODY, own, path, body)
    assert status == 403
    assert "does not serve the user with uid 65534" in text
    assert "--allow-uid 65534" in text
    await own.said("access refused: another user of this machine, from uid 65534 at 127.0.0.1")


@pytest.mark.requirement("SEC-10")
@on_linux
async def test_the_own_user_is_served_without_a_token(own: Served) -> None:
    status, _, text = await request(own)
    assert status == 200
    assert "serverInfo" in text


@pytest.mark.requirement("SEC-10")
@as_root
@on_linux
async def test_an_allowed_user_is_served(tmp_path: Path) -> None:
    async with served(tmp_path / "home", "--config", str(empty(tmp_path)), "--allow-uid", "nobody") as hub:
        assert (await request_as(NOBODY, hub, "/mcp", INITIALIZE))[0] == 200
        assert (await request_as(12345, hub, "/mcp", INITIALIZE))[0] == 403


def as_user(uid: int) -> list[str]:
    """Run a program as another user, who may read the interpreter wherever it is installed."""
    read = "+dac_read_search"
    ids = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return ["setpriv", *ids, f"--inh-caps={read}", f"--ambient-caps={read}"]


@pytest.mark.requirement("SEC-10")
@as_root
async def test_with_a_token_any_user_that_sends_it_is_served(tmp_path: Path) -> None:
    async with served(tmp_path / "home", "--config", str(empty(tmp_path)), "--token", TOKEN) as hub:
        assert (await request_as(NOBODY, hub, "/mcp", INITIALIZE))[0] == 401
        assert (await request_as(NOBODY, hub, "/mcp", INITIALIZE, headers=bearer(TOKEN)))[0] == 200


@pytest.mark.requirement("SEC-10")
async def test_where_the_user_is_not_known_a_token_of_its_own_is_required(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with served(home, "--config", str(empty(tmp_path)), "--local-token") as hub:
        assert "Callers need the token in" in hub.err
        file = home / "state" / "holdfast" / "caller.token"
        assert file.stat().st_mode & 0o777 == 0o600
        assert (await request(hub))[0] == 401
        assert (await request(hub, headers=bearer(file.read_text().strip())))[0] == 200
    imported = run("import", "--help", home=home)
    assert imported.returncode == 0


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize("option", ["--token-file", "--tokens-file", "--gateway-secret-file", "--control-token-file"])
@pytest.mark.parametrize("mode", [0o666, 0o644, 0o622])
def test_a_token_file_that_others_can_read_or_write_is_refused_with_the_remedy(
    tmp_path: Path, option: str, mode: int
) -> None:
    file = tmp_path / "a secret"
    file.write_text(TOKEN)
    file.chmod(mode)
    done = run("serve", "--port", "0", "--config", str(empty(tmp_path)), option, str(file), home=tmp_path / "home")
    assert done.returncode != 0
    assert "not private" in done.stderr
    assert f"chmod 600 '{file}'" in done.stderr
    assert TOKEN not in done.stderr


@pytest.mark.requirement("SEC-10")
async def test_state_that_others_could_read_is_corrected_and_reported(tmp_path: Path) -> None:
    home = tmp_path / "home"
    state = home / "state" / "holdfast"
    (state / "hubs").mkdir(parents=True)
    old = state / "old.sqlite"
    old.write_text("")
    old.chmod(0o644)
    state.chmod(0o755)
    async with served(home, "--config", str(empty(tmp_path))) as hub:
        await hub.said("other users of this machine could read")
        assert old.stat().st_mode & 0o777 == 0o600
        assert state.stat().st_mode & 0o777 == 0o700
        open_to_others = [path for path in state.rglob("*") if path.lstat().st_mode & 0o077]
        assert open_to_others == []


@pytest.mark.requirement("SEC-10")
@as_root
async def test_another_user_of_the_machine_reads_nothing_of_the_state(own: Served) -> None:
    state = own.home / "state" / "holdfast"
    assert {path.suffix for path in state.rglob("*")} >= {".json", ".key"}
    ids = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
    home = await anyio.run_process(["setpriv", *ids, "find", str(own.home), "-maxdepth", "1", "-readable"])
    assert str(own.home) in home.stdout.decode(), "the way there is open"
    tried = await anyio.run_process(["setpriv", *ids, "find", str(state), "-readable"], check=False)
    assert tried.stdout == b""
    assert {path for path in (state, *state.rglob("*")) if path.lstat().st_mode & 0o077} == set()


# Before authentication.


def limit_descriptors(hub: Served, most: int) -> None:
    resource.prlimit(hub.process.pid, resource.RLIMIT_NOFILE, (most, most))


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("begun", [b"", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"], ids=["silent", "half a head"])
async def test_three_hundred_half_open_connections_do_not_stop_a_hub_with_256_descriptors(
    tmp_path: Path, begun: bytes
) -> None:
    async with served(tmp_path / "home", "--config", str(empty(tmp_path))) as hub:
        limit_descriptors(hub, 256)
        held = []
        try:
            for _ in range(300):
                held.append(socket.create_connection(("127.0.0.1", port_of(hub)), timeout=20))
                if begun:
                    held[-1].sendall(begun)
            assert (await request(hub))[0] == 200
            assert number_open(held) <= 256 // 8, "the flood pushed out itself, and no deadline had to end it"
            assert (await request(hub, "/healthz", None))[0] == 200
        finally:
            for connection in held:
                connection.close()


@pytest.mark.requirement("SEC-11")
async def test_wrong_credentials_are_logged_counted_and_answered_late_and_lock_no_one_out(tmp_path: Path) -> None:
    """Behind a proxy all have one address: a valid credential that comes for the first time is let in too."""
    args = ("--config", str(empty(tmp_path)), "--token", TOKEN)
    control = "control-token-0123456789"
    async with served(tmp_path / "home", *args, HOLDFAST_CONTROL_TOKEN=control) as hub:
        statuses = [(await request(hub, headers=bearer(f"guess-{number}")))[0] for number in range(22)]
        assert statuses == [401] * 22, "a client whose token expired has to learn it"
        assert (await request(hub, headers=bearer(TOKEN)))[0] == 200
        assert (await request(hub, "/api/hub", None, headers=bearer("guess-control")))[0] == 401
        assert (await request(hub, "/api/session", {"code": "guess"}))[0] == 401
        assert (await request(hub, "/api/hub", None, headers=bearer(control)))[0] == 200
        code = json.loads((await request(hub, "/api/codes", {}, headers=bearer(control)))[2])["code"]
        assert (await request(hub, "/api/session", {"code": code}))[0] == 200
        assert (await request(hub, "/healthz", None))[0] == 200
        await hub.said("login failed: a wrong credential, from uid ")
        await hub.said("too many wrong credentials, further ones are answered late, from uid ")
        other = await request_from("127.0.0.9", hub, bearer(TOKEN))
        assert other == 200
        counted = (await request(hub, "/metrics", None, headers=bearer(TOKEN)))[2]
        assert 'holdfast_access_refused_total{kind="login"} 20.0' in counted
        assert "guess" not in hub.out + hub.err


async def request_from(source: str, hub: Served, headers: Mapping[str, str]) -> int:
    def ask() -> int:
        made = http.client.HTTPConnection("127.0.0.1", port_of(hub), timeout=20, source_address=(source, 0))
        try:
            made.request("POST", "/mcp", json.dumps(INITIALIZE), {**HEADERS, **headers})
            return made.getresponse().status
        finally:
            made.close()

    return await anyio.to_thread.run_sync(ask)


@pytest.mark.requirement("SEC-11")
async def test_a_stranger_cannot_make_the_hub_hold_a_large_body(tmp_path: Path) -> None:
    async with served(tmp_path / "home", "--config", str(empty(tmp_path)), "--token", TOKEN) as hub:
        status, _, _ = await request(hub, "/api/session", {"code": "x" * 100_000})
        assert status == 413


# Rotation.


@pytest.mark.requirement("SEC-18")
@pytest.mark.parametrize("hangup", [False, True], ids=["by itself", "SIGHUP"])
async def test_rotated_secrets_are_read_again(tmp_path: Path, hangup: bool) -> None:
    home, callers, control, gateway = (tmp_path / name for name in ("home", "callers", "control", "gateway"))
    replace_file(callers, TOKEN)
    replace_file(control, "control-token-0123456789")
    replace_file(gateway, "secret-of-the-gateway-0123456789")
    args = (
        *("--config", str(empty(tmp_path)), "--token-file", str(callers), "--control-token-file", str(control)),
        *("--gateway-secret-file", str(gateway)),
    )
    old = {"x-forwarded-user": "ada", "holdfast-gateway-secret": "secret-of-the-gateway-0123456789"}
    async with served(home, *args) as hub:
        assert (await request(hub, headers=bearer(TOKEN)))[0] == 200
        assert (await request(hub, "/api/hub", None, headers=bearer("control-token-0123456789")))[0] == 200
        assert (await request(hub, headers=old))[0] == 200
        replace_file(gateway, "newer-secret-of-the-gateway-0123456789")
        replace_file(callers, f"newer-{TOKEN}")
        replace_file(control, "newer-control-token-0123456789")
        if hangup:
            hub.send(signal.SIGHUP)
        await hub.said("callers need the new token")
        await hub.said("the control token changed")
        await hub.said("the gateway's secret changed")
        assert (await request(hub, headers=old))[0] == 401
        new = {**old, "holdfast-gateway-secret": "newer-secret-of-the-gateway-0123456789"}
        assert (await request(hub, headers=new))[0] == 200
        assert (await request(hub, headers=bearer(TOKEN)))[0] == 401
        assert (await request(hub, headers=bearer(f"newer-{TOKEN}")))[0] == 200
        assert (await request(hub, "/api/hub", None, headers=bearer("control-token-0123456789")))[0] == 401
        assert (await request(hub, "/api/hub", None, headers=bearer("newer-control-token-0123456789")))[0] == 200
        found = run("status", "--json", home=home)
        assert found.returncode == 0, found.stderr
        assert TOKEN not in hub.out + hub.err
        assert "secret-of-the-gateway" not in hub.out + hub.err


# TLS.


class Authority:
    """An authority, and the files of a hub with its certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.certificate, self.key, self.client_ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.client_ca))
        self.issue(self.ca)

    def issue(self, ca: trustme.CA) -> None:
        made = ca.issue_cert("127.0.0.1", "localhost")
        replace_file(self.key, made.private_key_pem.bytes())
        replace_file(self.certificate, b"".join(one.bytes() for one in made.cert_chain_pems))

    @property
    def options(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))

    def context(
        self, *, name: str = "", by: trustme.CA | None = None, trust: trustme.CA | None = None
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        (trust or self.ca).configure_trust(context)
        if name:
            (by or self.ca).issue_cert(name).configure_cert(context)
        return context


@pytest.mark.requirement("SEC-16")
async def test_a_hub_serves_tls_and_takes_a_new_certificate_without_a_restart(tmp_path: Path) -> None:
    authority, home = Authority(tmp_path), tmp_path / "home"
    async with served(home, "--config", str(empty(tmp_path)), *authority.options) as hub:
        assert hub.url.startswith("https://127.0.0.1:")
        assert (await request(hub, tls=authority.context()))[0] == 200
        found = run("status", "--json", home=home)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["hub"]["endpoint"] == hub.url
        replace_file(authority.certificate, "nonsense")
        hub.send(signal.SIGHUP)
        await hub.said("the last certificate stays in use")
        assert (await request(hub, tls=authority.context()))[0] == 200
        other = trustme.CA()
        authority.issue(other)
        hub.send(signal.SIGHUP)
        await hub.said("read the TLS certificate again")
        assert (await request(hub, tls=authority.context(trust=other)))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await request(hub, tls=authority.context())
        assert run("status", home=home).returncode == 0


@pytest.mark.requirement("DX-11", "SEC-16")
@pytest.mark.parametrize("wants_certificate", [False, True])
async def test_commands_use_a_hub_with_a_certificate_of_its_own_unless_it_wants_theirs(
    wants_certificate: bool, tmp_path: Path
) -> None:
    authority, home = Authority(tmp_path), tmp_path / "home"
    with StdioServer({"forecast": "sunny"}) as weather:
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"weather": weather.definition}}))
        extra = ("--tls-client-ca", str(authority.client_ca)) if wants_certificate else ()
        async with served(home, "--config", str(file), *authority.options, *extra) as hub:
            await hub.said("ready when:")
            for said, *command in (
                ("ready", "check", "--require", "weather/forecast", "--wait", "30s"),
                ("connected", "status"),
                ("forecast", "tools"),
                ("forecast", "find", "what is the forecast"),
                ("sunny", "call", "weather", "forecast"),
            ):
                ran = await anyio.to_thread.run_sync(
                    lambda words: run(*words, "--config", str(file), home=home), command
                )
                assert ran.returncode == 0, ran.stderr
                assert said in ran.stdout
            assert (len(weather.pids) == 1) is not wants_certificate


@pytest.mark.requirement("DX-11")
async def test_a_command_without_the_token_of_the_hub_says_that_it_is_missing(tmp_path: Path) -> None:
    home, token = tmp_path / "home", "token-of-the-callers-0123"
    with StdioServer({"forecast": "sunny"}) as weather:
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"weather": weather.definition}}))
        async with served(home, "--config", str(file), "--token", token) as hub:
            await hub.said("ready when:")
            for command in (("tools",), ("find", "forecast"), ("call", "weather", "forecast")):
                for environ, said in (({}, "set HOLDFAST_TOKEN"), ({"HOLDFAST_TOKEN": token}, "")):
                    ran = await anyio.to_thread.run_sync(
                        lambda words, given: run(*words, "--config", str(file), home=home, **given), command, environ
                    )
                    assert (ran.returncode == 0) is (said == "")
                    assert said in ran.stderr


@pytest.mark.requirement("SEC-16", "SEC-18")
async def test_with_mtls_a_caller_needs_a_certificate_and_the_gateway_names_its_users(tmp_path: Path) -> None:
    authority, home = Authority(tmp_path), tmp_path / "home"
    args = (
        *("--config", str(empty(tmp_path)), *authority.options, "--tls-client-ca", str(authority.client_ca)),
        *("--gateway-mtls", "--gateway-cert-name", "gateway.example", "--log-level", "debug"),
    )
    async with served(home, *args) as hub:
        named = {"x-forwarded-user": "ada"}
        status, _, text = await request(hub, tls=authority.context(), headers=named)
        assert (status, "a client certificate is required" in text) == (403, True)
        assert (await request(hub, tls=authority.context(name="gateway.example"), headers=named))[0] == 200
        assert (await request(hub, tls=authority.context(name="gateway.example")))[0] == 401, "it names no user"
        assert (await request(hub, tls=authority.context(name="other.example"), headers=named))[0] == 401
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await request(hub, tls=authority.context(name="gateway.example", by=trustme.CA()), headers=named)
        assert (await request(hub, "/healthz", None, tls=authority.context()))[0] == 200
        assert run("status", home=home).returncode == 0


@pytest.mark.requirement("SEC-16")
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("no key", "--tls-cert and --tls-key belong together"),
        ("missing", "cannot be read: it does not exist"),
        ("nonsense", "are not a certificate and its key"),
        ("other key", "does not belong to the certificate"),
        ("open key", "the TLS key is not private"),
        ("bad ca", "contains no certificate of an authority"),
        ("passphrase", "has a passphrase"),
    ],
)
def test_a_bad_file_for_tls_is_reported_at_once(tmp_path: Path, broken: str, said: str) -> None:
    authority = Authority(tmp_path)
    options = list(authority.options)
    if broken == "no key":
        options = options[:2]
    elif broken == "missing":
        authority.certificate.unlink()
    elif broken == "nonsense":
        replace_file(authority.certificate, "nonsense")
    elif broken == "other key":
        replace_file(authority.key, trustme.CA().issue_cert("x.example").private_key_pem.bytes())
    elif broken == "open key":
        authority.key.chmod(0o644)
    elif broken == "passphrase":
        encrypted = subprocess.run(
            ["openssl", "rsa", "-aes128", "-passout", "pass:abcdef", "-in", str(authority.key)],
            capture_output=True,
            check=False,
        )
        if encrypted.returncode:
            encrypted = subprocess.run(
                ["openssl", "ec", "-aes128", "-passout", "pass:abcdef", "-in", str(authority.key)],
                capture_output=True,
                check=True,
            )
        replace_file(authority.key, encrypted.stdout)
    else:
        replace_file(authority.client_ca, "nonsense")
        options += ["--tls-client-ca", str(authority.client_ca)]
    done = run("serve", "--port", "0", "--config", str(empty(tmp_path)), *options, home=tmp_path / "home")
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.requirement("SEC-11")
async def test_a_tls_handshake_that_does_not_go_on_holds_no_place_for_long(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with served(tmp_path / "home", "--config", str(empty(tmp_path)), *authority.options) as hub:
        limit_descriptors(hub, 256)
        held = [socket.create_connection(("127.0.0.1", port_of(hub)), timeout=20) for _ in range(300)]
        try:
            assert (await request(hub, tls=authority.context()))[0] == 200
            assert number_open(held) <= 256 // 8, "the flood pushed out itself, and no deadline had to end it"
        finally:
            for connection in held:
                connection.close()


@pytest.mark.requirement("SEC-10")
@pytest.mark.skipif(os.geteuid() != 0, reason="a folder is given to another user")
def test_a_state_folder_of_another_user_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "holdfast"
    folder.mkdir()
    keep_state_private({"XDG_STATE_HOME": str(tmp_path)})
    assert "belongs to uid" not in caplog.text
    os.chown(folder, 65534, 65534)
    keep_state_private({"XDG_STATE_HOME": str(tmp_path)})
    assert f"the state folder {folder} belongs to uid 65534" in caplog.text
