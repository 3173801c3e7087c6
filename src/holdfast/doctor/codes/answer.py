"""Codes about what a server answers: who may use it, whether it is MCP, what tools it has; and the rest."""

from __future__ import annotations

from holdfast.doctor.codes.code import Code

__all__ = ["ACCESS", "ANSWER", "OTHER", "TOOLS"]

ACCESS = (
    Code(
        "HF-AUTH-NEEDED",
        "error",
        "The server asks for credentials and none are configured",
        "It answered 401 to a request without any.",
        "Log in, or add a header with a token.",
    ),
    Code(
        "HF-AUTH-REJECTED",
        "error",
        "The server does not accept the credentials",
        "It answered 401: the token is wrong, revoked, or for another server.",
        "Log in again, or replace the token.",
    ),
    Code(
        "HF-AUTH-EXPIRED",
        "error",
        "The token has expired",
        "It says so itself, or the server does.",
        "Log in again, or replace the token.",
    ),
    Code(
        "HF-AUTH-AUDIENCE",
        "error",
        "The token is for another server",
        "Its audience is not this server's address.",
        "Get a token for this server: a token for one service does not open another.",
    ),
    Code(
        "HF-AUTH-SCOPE",
        "error",
        "The token lacks a scope",
        "The server says which one it wants.",
        "Log in again with that scope, or have a token made that has it.",
    ),
    Code(
        "HF-LOGIN-ENDED",
        "error",
        "The login has ended",
        "Its token expired and cannot be renewed, or the authorization server renews it no more.",
        "Log in again: holdfast login SERVER.",
    ),
    Code(
        "HF-LOGIN-UNREACHABLE",
        "error",
        "The login could not be renewed just now",
        "The authorization server did not answer, or answered with an error of its own. The login stands.",
        "Try again; nobody need log in anew.",
    ),
    Code(
        "HF-LOGIN-RENEWED",
        "note",
        "The token had expired and was renewed",
        "Tokens end after a while; whoever uses one next renews it.",
        "Nothing is to be done.",
    ),
    Code(
        "HF-LOGIN-INPUT",
        "error",
        "A login lacks something that the definition must give",
        "The authorization server registers no clients by itself, or half of its addresses are given by hand.",
        "Write what is named under `oauth`; whoever runs the server gives it out. All that is missing is listed.",
    ),
    Code(
        "HF-DENIED",
        "error",
        "Access was denied",
        "A policy of the server, or of a gateway before it, says no (403).",
        "Ask whoever runs it for access.",
    ),
    Code(
        "HF-DENIED-UNCLEAR",
        "error",
        "Access was denied, or authorization was out: this 403 does not say",
        "A gateway that fails closed answers an authorization outage and a denial alike.",
        "If everyone is refused, have the gateway answer outages with a status of their own.",
    ),
    Code(
        "HF-AUTH-OUTAGE",
        "error",
        "The gateway could not ask its authorization service",
        "The service is down, or slower than the gateway's timeout: 200 ms by default in many versions.",
        "Raise the timeout at the gateway. It is no denial, and nothing is wrong with your credentials.",
    ),
)

ANSWER = (
    Code(
        "HF-PATH",
        "error",
        "There is no MCP endpoint at this path",
        "The server is there, and answered 404 or 405.",
        "Use the path that was found, or the one in the server's documentation.",
    ),
    Code(
        "HF-TYPE-SSE",
        "error",
        "An SSE server is configured as streamable HTTP",
        "It speaks the older of the two transports.",
        'Set "type": "sse", with the address that was found.',
    ),
    Code(
        "HF-TYPE-HTTP",
        "error",
        "A streamable HTTP server is configured as SSE",
        "It speaks the newer of the two transports.",
        'Set "type": "http", with the address that was found.',
    ),
    Code(
        "HF-REDIRECT",
        "error",
        "The server sends us to another address",
        "Credentials never follow a redirect, so it is not followed.",
        "If that address is meant, put it into `url`.",
    ),
    Code(
        "HF-RATE",
        "error",
        "The server limits requests",
        "It answered 429.",
        "Wait, then try again; lower holdfast.load.concurrency if many servers share the limit.",
    ),
    Code(
        "HF-NOT-READY",
        "error",
        "The server, or what stands before it, is not ready",
        "It answered with an error of its own (5xx): starting up, overloaded, or broken.",
        "Try again in a moment; if it stays, look at its log.",
    ),
    Code(
        "HF-STATUS",
        "error",
        "The server rejected the request",
        "It answered with a status that has no code of its own here.",
        "Compare `url` and `headers` with the server's documentation.",
    ),
    Code(
        "HF-NOT-MCP",
        "error",
        "What answers is not an MCP server",
        "A web page, another API, or another port's service.",
        "Correct `url`.",
    ),
    Code(
        "HF-VERSION",
        "error",
        "No common protocol version",
        "The server speaks none that this Holdfast knows.",
        "Update whichever of the two is older.",
    ),
    Code(
        "HF-PROTOCOL",
        "error",
        "The server's answer does not fit the protocol",
        "A fault of the server's own.",
        "Update it, or tell its authors.",
    ),
    Code(
        "HF-RPC-ERROR",
        "error",
        "The server answered with an error of its own",
        "It speaks MCP, and refused the handshake or the listing.",
        "Its message and its log say why.",
    ),
    Code(
        "HF-BOUND",
        "error",
        "The server sent more than is allowed",
        "A message or a catalog is over its bound, which protects everybody else.",
        "If you trust the server, raise the setting that is named.",
    ),
)

TOOLS = (
    Code(
        "HF-TOOLS-NONE",
        "warning",
        "The server lists no tools",
        "It has none, or shows them only with certain credentials or arguments.",
        "Compare its arguments and token with its documentation; prompts and resources still work.",
    ),
    Code(
        "HF-TOOLS-HIDDEN",
        "warning",
        "The definition hides every tool",
        "`tools` in the definition lets none of the names pass.",
        "Correct its patterns.",
    ),
    Code(
        "HF-TOOLS-DUPLICATE",
        "warning",
        "Two tools have the same name",
        "A fault of the server's own; only one of them can be called.",
        "Update it, or tell its authors.",
    ),
    Code(
        "HF-TOOLS-NAME",
        "warning",
        "A tool's name is one that clients refuse",
        "They accept letters, digits, _ and -, 64 at the most. The hub shortens such names; other clients may not.",
        "Rename it at the server, or use the server through the hub.",
    ),
    Code(
        "HF-TOOLS-SCHEMA",
        "warning",
        "A tool's schema is not valid JSON Schema",
        "A fault of the server's own: models and clients may refuse the tool, or all of the server's.",
        "Update it, or hide the tool with tools.exclude.",
    ),
)

OTHER = (
    Code(
        "HF-HUB-DIFFERS",
        "note",
        "The running hub and this examination say different things",
        "They looked at different times, with another environment, or the hub has not tried again yet.",
        "The words say which; `holdfast reconnect SERVER` makes the hub try now.",
    ),
    Code(
        "HF-HUB-SILENT",
        "warning",
        "A hub runs with this configuration and could not be asked",
        "It is stuck, or of another version.",
        "Look at its log; restart it.",
    ),
    Code(
        "HF-CHECK-TIME",
        "error",
        "A check did not finish in time",
        "Something on the way did not answer, and nothing more is known.",
        "Give it longer with --timeout.",
    ),
    Code(
        "HF-CHECK-CRASHED",
        "error",
        "A check failed by itself",
        "A fault of Holdfast's own. The other checks are not touched by it.",
        "Please report it with what HOLDFAST_DEBUG=1 shows.",
    ),
    Code(
        "HF-UNEXPECTED",
        "error",
        "Something failed in a way that nobody foresaw",
        "A fault of Holdfast's own until shown otherwise.",
        "Please report it with what HOLDFAST_DEBUG=1 shows.",
    ),
)
