"""The status page's files: who gets them, and what they may do in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from holdfast.control.server import status_page as page
from holdfast.control.server.status_page import page_routes

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-5")]

ROOT = Path(__file__).parents[3]
STATIC = files("holdfast.control.server") / "static"
NAMES = sorted(file.name for file in STATIC.iterdir())


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=Starlette(routes=page_routes()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("path", ["/", *(f"/static/{name}" for name in NAMES)])
async def test_every_file_is_served_with_the_strictest_policy_it_can_live_with(
    http: httpx2.AsyncClient, path: str
) -> None:
    answer = await http.get(path)
    assert answer.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers


async def test_a_file_that_is_unchanged_is_not_sent_again(http: httpx2.AsyncClient) -> None:
    tag = (await http.get("/static/app.js")).headers["etag"]
    again = await http.get("/static/app.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    ["/static/../status_page.py", "/static/%2e%2e/status_page.py", "/static/..%2fstatus_page.py", "/static/x.js"],
)
async def test_nothing_else_is_served(http: httpx2.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_another_host_or_carries_markup_into_a_script(name: str) -> None:
    text = (STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?://|//[a-z]+\.", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|<script>|style=", text) == []


def test_what_is_asked_for_is_there() -> None:
    text = "".join((STATIC / name).read_text() for name in NAMES)
    asked = {*re.findall(r'"/static/([^"]+)"', text), *re.findall(r'from "\./([^"]+)"', text)}
    assert asked == {*NAMES} - {"index.html"}


def test_the_wheel_brings_the_page_with_it(tmp_path: Path) -> None:
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert {f"holdfast/control/server/static/{name}" for name in NAMES} <= {*inside}


@pytest.mark.parametrize(
    ("client", "host", "headers", "path_is_told"),
    [
        ("127.0.0.1", "127.0.0.1:4653", {}, True),
        ("10.0.0.7", "127.0.0.1:4653", {}, False),
        ("127.0.0.1", "hub.example", {}, False),
        ("127.0.0.1", "127.0.0.1:4653", {"x-forwarded-for": "10.0.0.7"}, False),
    ],
    ids=["this machine", "another machine", "another name", "a proxy on this machine"],
)
def test_a_path_of_this_machine_is_told_only_on_this_machine(
    client: str, host: str, headers: dict[str, str], *, path_is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a program often holds the name of a user."""
    monkeypatch.setattr(page, "command_line", lambda *words: " ".join(("/home/ada/bin/holdfast", *words)))
    sent = [(name.encode(), value.encode()) for name, value in {"host": host, **headers}.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": sent, "client": (client, 1)}
    assert ("ada" in page.sign_in_command(Request(scope))) == path_is_told
