"""An authorization service for Holdfast and Envoy that asks OpenFGA: may this user call this tool?

    pip install grpcio xds-protos
    OPENFGA_URL=http://localhost:8080 OPENFGA_STORE=01J… python openfga_authorizer.py 127.0.0.1:9191

A principal `https://idp.example#ada` is the user `user:ada`; its groups are told to OpenFGA with each question, so they
need not be stored there. The tool `delete_issue` of the server `jira` is the object `tool:jira/delete_issue`.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import grpc
from envoy.service.auth.v3 import external_auth_pb2 as auth, external_auth_pb2_grpc as auth_grpc
from google.rpc import code_pb2, status_pb2

CHECK = f"{os.environ['OPENFGA_URL']}/stores/{os.environ['OPENFGA_STORE']}/check"
SECONDS = 2.0


def check(user: str, groups: list[str], server: str, tool: str) -> bool:
    """Whether the user may call the tool, by the tuples of OpenFGA and by the groups of her token."""
    target = f"tool:{quote(server, safe='')}/{quote(tool, safe='')}"
    known = [{"user": f"user:{user}", "relation": "member", "object": f"group:{quote(name)}"} for name in groups]
    known.append({"user": f"server:{quote(server, safe='')}", "relation": "server", "object": target})
    question = {
        "tuple_key": {"user": f"user:{user}", "relation": "caller", "object": target},
        "contextual_tuples": {"tuple_keys": known},
    }
    request = Request(CHECK, json.dumps(question).encode(), {"content-type": "application/json"})  # noqa: S310 - ours
    with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - as above
        return json.load(answer).get("allowed") is True


class Authorizer(auth_grpc.AuthorizationServicer):
    """Answers questions. What fails here is an error of gRPC, and no decision."""

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the method
        """Decide about one call."""
        told = request.attributes.context_extensions
        user = quote(told["principal"].rpartition("#")[2], safe="")
        if check(user, json.loads(told["groups"]), told["server"], told["name"]):
            return auth.CheckResponse(status=status_pb2.Status(code=code_pb2.OK))
        words = f"OpenFGA knows no relation of {user} to {told['server']}/{told['name']}"
        return auth.CheckResponse(
            status=status_pb2.Status(code=code_pb2.PERMISSION_DENIED),
            denied_response=auth.DeniedHttpResponse(body=words),
        )


def main(address: str) -> None:
    """Serve until the end."""
    server = grpc.server(ThreadPoolExecutor(16))
    auth_grpc.add_AuthorizationServicer_to_server(Authorizer(), server)
    server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
