"""Codes about authorization, the server's answer, its tools, and others."""

from __future__ import annotations

from holdfast.doctor.codes.code import Code

__all__ = ["ACCESS", "ANSWER", "OTHER", "TOOLS"]

ACCESS = (
    Code(
        "HF-AUTH-NEEDED",
        "error",
        "The server asks for credentials and none are configured",
        "It answered 401 to a request without credentials.",
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
        "The token's own expiry date has passed, or the server says so.",
        "Log in again, or replace the token.",
    ),
    Code(
        "HF-AUTH-AUDIENCE",
        "error",
        "The token is for another server",
        "Its audience is not this server's address.",
        "Get a token for this server.",
    ),
    Code(
        "HF-AUTH-SCOPE",
        "error",
        "The token lacks a scope",
        "The server says which one it wants.",
        "Log in again with that scope, or create a token that has it.",
    ),
    Code(
        "HF-LOGIN-ENDED",
        "error",
        "The login has ended",
        "Its token expired and cannot be renewed, or the authorization server no longer renews it.",
        "Log in again: holdfast login SERVER.",
    ),
    Code(
        "HF-LOGIN-UNREACHABLE",
        "error",
        "The login could not be renewed at the moment",
        "The authorization server did not answer, or answered with an error of its own. The login is still valid.",
        "Try again. A new login is not needed.",
    ),
    Code(
        "HF-LOGIN-RENEWED",
        "note",
        "The token had expired and was renewed",
        "Tokens expire after some time, and the next use renews them.",
        "Nothing needs to be done.",
    ),
    Code(
        "HF-LOGIN-INPUT",
        "error",
        "The definition lacks a value that the login needs",
        "The authorization server does not register clients automatically, or some of its addresses are missing.",
        "Write the named values under `oauth`. Ask the server's operator for them. All missing values are listed.",
    ),
    Code(
        "HF-DENIED",
        "error",
        "Access was denied",
        "A policy of the server, or of a gateway in front of it, denies access (403).",
        "Ask the server's operator for access.",
    ),
    Code(
        "HF-DENIED-UNCLEAR",
        "error",
        "Access was denied, or the authorization service failed: this 403 does not say which",
        "A gateway that fails closed gives the same answer for an authorization outage and for a denial.",
        "If every user is denied, configure the gateway to answer outages with another status.",
    ),
    Code(
        "HF-AUTH-OUTAGE",
        "error",
        "The gateway could not reach its authorization service",
        "The service is down, or slower than the gateway's timeout: 200 ms by default in many versions.",
        "Raise the timeout at the gateway. This is not a denial, and your credentials are not the cause.",
    ),
)

ANSWER = (
    Code(
        "HF-PATH",
        "error",
        "There is no MCP endpoint at this path",
        "The server answered 404 or 405.",
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
        "The server redirects to another address",
        "Credentials never follow a redirect, so it is not followed.",
        "If that address is the right one, write it into `url`.",
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
        "The server, or a proxy in front of it, is not ready",
        "It answered with a server error (5xx): it is starting, overloaded or broken.",
        "Try again in a moment; if the error stays, look at its log.",
    ),
    Code(
        "HF-STATUS",
        "error",
        "The server rejected the request",
        "It answered with a status that has no code of its own.",
        "Compare `url` and `headers` with the server's documentation.",
    ),
    Code(
        "HF-NOT-MCP",
        "error",
        "The address does not belong to an MCP server",
        "A web page, another API or another service answers there.",
        "Correct `url`.",
    ),
    Code(
        "HF-VERSION",
        "error",
        "No common protocol version",
        "The server speaks none that this Holdfast knows.",
        "Update the older of the two.",
    ),
    Code(
        "HF-PROTOCOL",
        "error",
        "The server's answer does not fit the protocol",
        "This is a bug in the server.",
        "Update it, or report the bug to its authors.",
    ),
    Code(
        "HF-RPC-ERROR",
        "error",
        "The server answered with a JSON-RPC error",
        "It speaks MCP and rejected the handshake or the listing.",
        "Its message and its log say why.",
    ),
    Code(
        "HF-BOUND",
        "error",
        "The server sent more than the limit allows",
        "A message or a catalog exceeds a limit. The limit protects the other servers.",
        "If you trust the server, raise the named setting.",
    ),
)

TOOLS = (
    Code(
        "HF-TOOLS-NONE",
        "warning",
        "The server lists no tools",
        "It has no tools, or shows them only with certain credentials or arguments.",
        "Compare its arguments and token with its documentation; prompts and resources still work.",
    ),
    Code(
        "HF-TOOLS-HIDDEN",
        "warning",
        "The definition hides every tool",
        "No tool name matches the patterns in `tools`.",
        "Correct the patterns.",
    ),
    Code(
        "HF-TOOLS-DUPLICATE",
        "warning",
        "Two tools have the same name",
        "This is a bug in the server; only one of the two can be called.",
        "Update it, or report the bug to its authors.",
    ),
    Code(
        "HF-TOOLS-NAME",
        "warning",
        "Clients reject the name of a tool",
        "They accept at most 64 letters, digits, _ and -. The hub shortens such names; other clients may not.",
        "Rename it at the server, or use the server through the hub.",
    ),
    Code(
        "HF-TOOLS-SCHEMA",
        "warning",
        "A tool's schema is not valid JSON Schema",
        "This is a bug in the server: models and clients may reject the tool, or all tools of the server.",
        "Update it, or hide the tool with tools.exclude.",
    ),
)

OTHER = (
    Code(
        "HF-HUB-DIFFERS",
        "note",
        "The running hub and this examination disagree",
        "They connected at different times or with different environments, or the hub has not tried again yet.",
        "`holdfast reconnect SERVER` makes the hub try now.",
    ),
    Code(
        "HF-HUB-SILENT",
        "warning",
        "A hub serves this configuration and did not answer",
        "It hangs, or it has another version.",
        "Look at its log; restart it.",
    ),
    Code(
        "HF-CHECK-TIME",
        "error",
        "A check did not finish in time",
        "The server or the network did not answer in time.",
        "Allow more time with --timeout.",
    ),
    Code(
        "HF-CHECK-CRASHED",
        "error",
        "A check crashed",
        "This is a bug in Holdfast. The other checks are not affected.",
        "Please report it, with the output under HOLDFAST_DEBUG=1.",
    ),
    Code(
        "HF-UNEXPECTED",
        "error",
        "An unexpected error occurred",
        "This is probably a bug in Holdfast.",
        "Please report it, with the output under HOLDFAST_DEBUG=1.",
    ),
)
