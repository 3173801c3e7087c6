"""``make audit``: an advisory for a pinned version fails it, and a service that cannot be reached does not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.requirement("SEC-17")

ADVISORY: dict[str, Any] = {
    "id": "PYSEC-2026-1",
    "aliases": ["CVE-2026-1"],
    "summary": "It has a hole.",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "holed", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}


class Service(BaseHTTPRequestHandler):
    """The interface of OSV, with one advisory."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = asked["package"]["name"] == "holed" and asked["version"] == "1.0"
        body = json.dumps({"vulns": [ADVISORY]} if known else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def audited(lock: Path, service: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "deploy/audit.py"), "--osv-url", service, str(lock)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("version", "code"), [("1.0", 1), ("1.1", 0)])
def test_a_pinned_version_with_an_advisory_fails_the_audit(
    service: str, tmp_path: Path, version: str, code: int
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"holed=={version} \\\n    --hash=sha256:{'0' * 64}\nsound==2.0 \\\n    --hash=sha256:{'1' * 64}\n")
    ran = audited(lock, service)
    assert ran.returncode == code, ran.stderr
    assert ("holed 1.0: PYSEC-2026-1, fixed in 1.1" in ran.stdout) is (code == 1)
    assert "2 packages" in ran.stdout


def test_a_service_that_cannot_be_reached_skips_the_audit_and_says_so(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"holed==1.0 --hash=sha256:{'0' * 64}\n")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        ran = audited(lock, f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert ran.returncode == 0
    assert "skipped" in ran.stdout


def test_every_lock_is_audited() -> None:
    named = (ROOT / "deploy/audit.py").read_text(encoding="utf-8")
    locks = [str(lock.relative_to(ROOT)) for folder in (ROOT, ROOT / "deploy") for lock in folder.rglob("*.lock")]
    ours = [lock for lock in locks if not lock.startswith(".")]
    assert ours
    assert all(f'"{lock}"' in named for lock in ours)
