"""What `helm test` runs. Each argument is "METHOD URL STATUSES [FILE WITH A TOKEN]"; 1 if an answer differs."""

import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

INITIALIZE = b"""{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
"capabilities": {}, "clientInfo": {"name": "helm-test", "version": "1"}}}"""


def answer(method: str, url: str, token: str = "") -> str:
    """The status of the answer, or why there is none."""
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {Path(token).read_text().strip()}"
    request = Request(url, INITIALIZE if method == "POST" else None, headers, method=method)  # noqa: S310 - http
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=30) as reply:
            return str(reply.status)
    except HTTPError as refused:
        return str(refused.code)
    except OSError as exc:
        return str(exc)


failed = False
for check in sys.argv[1:]:
    method, url, statuses, *token = check.split()
    got = answer(method, url, *token)
    fits = got in statuses.split("|")
    failed |= not fits
    shown = " with the token" if token else ""
    print(f"{'ok' if fits else 'FAILED'}: {method} {url}{shown}: {got}{'' if fits else f', not {statuses}'}")  # noqa: T201
sys.exit(failed)
