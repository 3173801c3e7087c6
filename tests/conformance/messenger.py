"""The conformance suite starts this program for each scenario: it sends the scenario to the test process and waits."""

import json
import os
import socket
import sys


def main() -> None:
    """``messenger.py SOCKET URL``; the context of the scenario is in the environment."""
    place, url = sys.argv[-2:]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(place)
        link.sendall(json.dumps({"url": url, "context": context}).encode() + b"\n")
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    if answer:
        sys.exit(answer.decode())


if __name__ == "__main__":
    main()
