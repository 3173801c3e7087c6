"""Every code of a finding: what it means, what causes it, how to fix it.

A code is stable: its text may improve, its meaning does not change, and a retired code is not used again.
``doctor explain`` and the reference page are generated from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["CODES", "GROUPS", "Code", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "note"]
"""An error keeps the server from being used; a warning does not; a note is worth knowing."""


class Code(NamedTuple):
    """One code."""

    id: str
    severity: Severity
    means: str
    cause: str
    cure: str


GROUPS: Mapping[str, tuple[Code, ...]] = {
    "The configuration": (
        Code(
            "HF-CONFIG",
            "error",
            "The configuration file cannot be used as a whole",
            "It cannot be read, is not JSON, or has an unknown key or setting.",
            "Correct the file at the named line and column.",
        ),
        Code(
            "HF-DEFINITION",
            "error",
            "The server's definition cannot be used",
            "A key is misspelt, a value has the wrong type, or two keys contradict each other.",
            "Correct the file at the named line and column.",
        ),
        Code(
            "HF-VARIABLE",
            "error",
            "An environment variable that the definition names is not set",
            "The definition uses ${NAME}, and the variable is not set in the shell that started Holdfast.",
            "Export it, or write a default: ${NAME:-default}. Every missing variable is listed.",
        ),
        Code(
            "HF-PLACEHOLDER",
            "warning",
            "A value in the definition is a placeholder",
            "The definition was copied from documentation, and a value such as <YOUR_API_KEY> was not replaced.",
            "Put the real value into a variable, and write ${env:NAME}. `holdfast doctor --fix` writes the reference.",
        ),
        Code(
            "HF-PLACEMENT",
            "warning",
            "`placement` has no effect any more",
            "A stdio server runs on each replica of a fleet. What must run once has a hub of its own.",
            "Remove the key. `holdfast doctor --fix` writes null.",
        ),
        Code(
            "HF-FILE-READABLE",
            "warning",
            "Other users can read a file with secrets",
            "The configuration or an envFile contains credentials, and its mode allows others to read it.",
            "Change its mode: chmod 600. `holdfast doctor --fix` does it.",
        ),
        Code(
            "HF-TOKENS-CORRUPT",
            "warning",
            "The token store is damaged",
            "The disk was full, or another program wrote to it. No login can be read from it.",
            "Set it aside and log in again. `holdfast doctor --fix` sets it aside and deletes nothing.",
        ),
        Code(
            "HF-STATE-CORRUPT",
            "warning",
            "The hub's state file is damaged",
            "The disk was full, or another program wrote to it.",
            "Set it aside; the hub writes a new one. `holdfast doctor --fix` does it and deletes nothing.",
        ),
    ),
    "A command and its process": (
        Code(
            "HF-COMMAND-MISSING",
            "error",
            "The command was not found",
            "It is not installed, is misspelt, or is not on the PATH that Holdfast was started with.",
            "Install the package that contains it, or write the right name or the full path into `command`.",
        ),
        Code(
            "HF-COMMAND-RUN-BIT",
            "error",
            "The command is not executable",
            "The file exists and lacks the execute permission, or it is a folder.",
            "chmod +x, or write the path of the program in the folder.",
        ),
        Code(
            "HF-COMMAND-FOLDER",
            "error",
            "The working folder of the command does not exist",
            "`cwd` is misspelt, or relative to another folder than expected.",
            "Create the folder, or correct `cwd`.",
        ),
        Code(
            "HF-COMMAND-FORMAT",
            "error",
            "The command is not a program",
            "It is a script without a first line such as #!/bin/sh, or a program for another processor.",
            "Add that line, or write the interpreter into `command` and the script into `args`.",
        ),
        Code(
            "HF-COMMAND-INTERPRETER",
            "error",
            "The interpreter of a script does not exist",
            "The first line of the script names a program that does not exist, often in a moved virtual environment.",
            "Install that interpreter, or correct the script's first line.",
        ),
        Code(
            "HF-COMMAND-START",
            "error",
            "The command could not be started",
            "The system refused to start it, for the named reason.",
            "Start it by hand to see the error, and remove the cause.",
        ),
        Code(
            "HF-EXITED",
            "error",
            "The server's process ended before it was ready",
            "It failed; the end of its stderr is shown.",
            "Run its command by hand, and provide what it asks for.",
        ),
        Code(
            "HF-EXIT-VARIABLE",
            "error",
            "The server's process ended and named an environment variable",
            "Servers get a minimal environment and the variables in `env`, not the environment of your shell.",
            'Add it to the definition: "env": {"NAME": "${env:NAME}"}, and export it.',
        ),
        Code(
            "HF-EXIT-RUNTIME",
            "error",
            "The server needs another version of Node or Python",
            "The first one on PATH is too old or too new.",
            "Install the version that it needs, or write that program's full path into `command`.",
        ),
        Code(
            "HF-EXIT-MODULE",
            "error",
            "The server's program lacks a module",
            "It is not installed for the Python or Node that runs the server.",
            "Install it there.",
        ),
        Code(
            "HF-EXIT-VERSION",
            "error",
            "The server needs another version of a Python package",
            "It was written for an older or newer one, often for version 1 of `mcp`, and got the newest.",
            'Install the version that it needs beside it; for uvx: "args": ["--with", "mcp<2", …].',
        ),
        Code(
            "HF-EXIT-ADDRESS",
            "error",
            "The server's process ended because it could not reach a service that it needs",
            "A database or another service does not listen at the address that the server uses.",
            "Start that service, or correct its address in `env` or `args`.",
        ),
        Code(
            "HF-EXIT-PORT",
            "error",
            "The server's process ended because its port is taken",
            "Another process listens on the port that the server opens: often an earlier or second process of itself.",
            "End that process, or give the server another port in `env` or `args`.",
        ),
        Code(
            "HF-EXIT-PACKAGE",
            "error",
            "The package of the server, or one that it needs, does not exist",
            "npx or uvx did not find it in the registry: its name is misspelt, it is private, or it has no such "
            "version.",
            "Correct its name or version in `args`.",
        ),
        Code(
            "HF-EXIT-EXECUTABLE",
            "error",
            "The package has no executable of the name that is asked for",
            "The executable of a package may have another name than the package. uvx and npx run the one of the same "
            "name.",
            'Name both: "args": ["--from", "PACKAGE", "EXECUTABLE"] for uvx, ["-p", "PACKAGE", "EXECUTABLE"] for npx.',
        ),
        Code(
            "HF-EXIT-WITHDRAWN",
            "error",
            "The authors have withdrawn the package of the server",
            "The package was superseded, or is no longer maintained: its releases were yanked or unpublished.",
            "Use its successor, if the output names one, or another server; or name a version that was not withdrawn.",
        ),
        Code(
            "HF-EXIT-BROKEN",
            "error",
            "The installed release of the package cannot work",
            "It imports what the packages that it depends on do not have, such as a file without its suffix.",
            'Use another release: "PACKAGE@<VERSION" in `args`, with the version that is broken. Report it to the '
            "authors.",
        ),
        Code(
            "HF-EXIT-ARGUMENT",
            "error",
            "The server's process ended because an argument is missing",
            "It needs an option or a value on its command line.",
            "Add it to `args`. The documentation of the server, or its `--help`, says which values it takes.",
        ),
        Code(
            "HF-EXIT-CERTIFICATE",
            "error",
            "The server's process ended because it does not trust a certificate",
            "A company's proxy signs certificates itself, and the program does not use the system's list of "
            "authorities.",
            'Name the file with the authorities: "env": {"NODE_EXTRA_CA_CERTS": …}, or SSL_CERT_FILE for uvx and '
            "Python.",
        ),
        Code(
            "HF-EXIT-DOCKER",
            "error",
            "Docker cannot start the server's container",
            "Docker is not running, this user may not use it, or the image does not exist.",
            "Start Docker, or correct the name of the image in `args`.",
        ),
        Code(
            "HF-KILLED",
            "error",
            "The server's process was killed",
            "A user or a program ended it, or the system was out of memory.",
            "Try again; if it happens again, look at the system's log.",
        ),
        Code(
            "HF-STDOUT-ONLY",
            "error",
            "The command prints text on stdout that is not MCP",
            "It is not an MCP server, or it needs an argument to start as one.",
            "Correct `command` and `args`.",
        ),
        Code(
            "HF-STDOUT-NOISE",
            "warning",
            "The server prints other text on stdout besides MCP",
            "It logs there. Holdfast skips such lines; other clients may fail.",
            "Make it log to stderr.",
        ),
    ),
    "The network": (
        Code(
            "HF-DNS-NAME",
            "error",
            "The host name does not exist",
            "It is misspelt, or it exists only inside a network (a VPN, a cluster) that this machine is not in.",
            "Correct `url`, or connect to that network.",
        ),
        Code(
            "HF-DNS-SERVER",
            "error",
            "The host name could not be looked up",
            "The name server does not answer. The name itself may be right.",
            "Check this machine's network and DNS settings, then try again.",
        ),
        Code(
            "HF-REFUSED",
            "error",
            "Nothing listens at the address",
            "The machine refused the connection: the server is not running, or listens on another port.",
            "Start it, or correct the port in `url`.",
        ),
        Code(
            "HF-FILTERED",
            "error",
            "The port does not answer at all",
            "No reply came: a firewall drops the packets, or the machine is off.",
            "Open the port, connect the VPN, or correct the host in `url`.",
        ),
        Code(
            "HF-UNREACHABLE",
            "error",
            "There is no route to the host",
            "The network reports that the host cannot be reached: no VPN, no IPv6 or no link.",
            "Check this machine's network.",
        ),
        Code(
            "HF-PROXY-DOWN",
            "error",
            "The proxy cannot be reached",
            "A proxy variable is set, and nothing answers at its address.",
            "Correct or unset the variable, or add this host to NO_PROXY.",
        ),
        Code(
            "HF-PROXY-LOGIN",
            "error",
            "The proxy asks for credentials",
            "It answered 407.",
            "Put user and password into the proxy variable, or add this host to NO_PROXY.",
        ),
        Code(
            "HF-PROXY-REFUSED",
            "error",
            "The proxy refused to connect",
            "It does not allow this host or port, or cannot reach it.",
            "Add this host to NO_PROXY, or ask the proxy's operator.",
        ),
        Code(
            "HF-CUT",
            "error",
            "The connection was closed before an answer came",
            "The server crashed on the request, or a device in between closed the connection.",
            "Look at the server's log, and try again.",
        ),
        Code(
            "HF-SILENT",
            "error",
            "No answer came in time",
            "The server accepted the connection, or was started, and sent no answer.",
            "Allow more time with --timeout; if that helps, raise holdfast.load.attemptTimeout, or the startTimeout "
            "of a "
            "process. Otherwise look at its log.",
        ),
    ),
    "TLS": (
        Code(
            "HF-TLS-NAME",
            "error",
            "The certificate is for another name",
            "The certificate does not contain the host name or address in `url`.",
            "Use a name in the certificate.",
        ),
        Code(
            "HF-TLS-EXPIRED",
            "error",
            "The certificate has expired",
            "The server's operator did not renew it.",
            "Ask the server's operator to renew it. No change on this machine helps.",
        ),
        Code(
            "HF-TLS-EARLY",
            "error",
            "The certificate is not valid yet",
            "Its validity begins in the future.",
            "Wait, or ask the server's operator to replace it.",
        ),
        Code(
            "HF-TLS-CLOCK",
            "error",
            "This machine's clock is wrong",
            "The server's clock differs from this machine's, and by its time the certificate is valid.",
            "Set the clock.",
        ),
        Code(
            "HF-TLS-AUTHORITY",
            "error",
            "The certificate is signed by an authority that this machine does not trust",
            "The cause is a company's own authority, a self-signed certificate, or a proxy that intercepts TLS.",
            "If you trust that authority, export SSL_CERT_FILE with the path of its certificate.",
        ),
        Code(
            "HF-TLS-UNVERIFIED",
            "error",
            "The certificate does not verify",
            "The message names the reason.",
            "Ask the server's operator to replace it.",
        ),
        Code(
            "HF-TLS-PLAIN",
            "error",
            "`url` says https, and the server speaks http",
            "The port speaks plain HTTP.",
            "Write http:// in `url`.",
        ),
        Code(
            "HF-TLS-HANDSHAKE",
            "error",
            "The TLS handshake failed",
            "Both sides share no version or cipher, the server needs a client certificate, or the port is not a TLS "
            "port.",
            "Check the server's TLS settings.",
        ),
        Code(
            "HF-HTTPS-MEANT",
            "error",
            "`url` says http, and the server speaks https",
            "The port speaks TLS, or redirects every request to https.",
            "Write https:// in `url`.",
        ),
        Code(
            "HF-PLAIN-CREDENTIALS",
            "error",
            "Credentials would be sent unencrypted",
            "The definition has headers, and `url` is plain http to another machine. No request was sent.",
            "Use https; or, if the network is trusted, set allowPlainHttp.",
        ),
    ),
    "Authorization": (
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
            "HF-LOGIN-SETTINGS",
            "note",
            "The definition lacks settings that a login needs",
            "It names a client id without its redirect URI, or an authorization server without all of its endpoints.",
            "Ask the operator of the authorization server for them, and write them into `oauth` of the definition.",
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
            "HF-DENIED-HOST",
            "error",
            "The server refuses the host name in its URL",
            "Servers on this machine refuse foreign host names, so that web pages cannot reach them. Many accept "
            "`localhost` and not `127.0.0.1`.",
            "Write the name that it accepts into the URL, or allow this one at the server.",
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
    ),
    "The server's answer": (
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
            "If you trust the server, raise the named setting. Where none is named, the limit is fixed.",
        ),
    ),
    "Its tools": (
        Code(
            "HF-BEHIND-HUB",
            "error",
            "Another hub runs the server, and the server is not available there",
            "That hub cannot be reached, or it says that the server has failed, is starting, or is disabled.",
            "Start that hub. If it runs, follow the reason that it gives, or run `holdfast doctor` on its machine.",
        ),
        Code(
            "HF-DESCRIPTORS",
            "error",
            "No file descriptors are left",
            "The process has as many files and connections open as the system allows. The server is not at fault.",
            "Raise the limit of open files, or check fewer servers at once.",
        ),
        Code(
            "HF-TOOLS-NONE",
            "warning",
            "The server lists no tools",
            "It has no tools, or shows them only with certain credentials or arguments.",
            "Compare its arguments and token with its documentation; prompts and resources still work.",
        ),
        Code(
            "HF-LIST",
            "warning",
            "Prompts, resources or templates could not be listed",
            "The server answers such a list with an error, with an invalid result, or not at all. Its tools still "
            "work.",
            "Update the server, or report the fault to its authors.",
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
            "HF-TOOLS-CUT",
            "warning",
            "Clients cut the names of tools, or leave the tools out",
            "`holdfast.nameLength` is longer than what is left beside the prefix that these clients put before each "
            "name.",
            "Remove `nameLength`: the default fits every known client. Names given out before stay callable.",
        ),
        Code(
            "HF-TOOLS-LONG",
            "note",
            "At the server's own endpoint, clients cut the names of tools or leave the tools out",
            "/servers/NAME/mcp has the server's own names, and a client puts its prefix before them. At /mcp they fit.",
            "Use the server at /mcp, or give it a shorter name in the client's file.",
        ),
        Code(
            "HF-TOOLS-SCHEMA",
            "warning",
            "A tool's schema is not valid JSON Schema",
            "This is a bug in the server: models and clients may reject the tool, or all tools of the server.",
            "Update it, or hide the tool with tools.exclude.",
        ),
    ),
    "Other": (
        Code(
            "HF-HUB-DIFFERS",
            "warning",
            "The running hub and this examination disagree",
            "They connected at different times or with different environments, or the hub has not tried again yet.",
            "`holdfast reconnect SERVER` makes the hub try now.",
        ),
        Code(
            "HF-HUB-ALONE",
            "warning",
            "The running hub has the server's only process",
            "The server opens a port, so a second process of it cannot start for the examination. The hub's works.",
            "Nothing is wrong. To examine it alone, disable it in the hub, and enable it again afterwards.",
        ),
        Code(
            "HF-HUB-BREAKER",
            "warning",
            "The server works, but the running hub refuses calls to it",
            "Calls through the hub failed several times, so its circuit breaker opened. A new connection may still "
            "work.",
            "After the cooldown the next call is a test. `holdfast reconnect SERVER` makes the hub try now.",
        ),
        Code(
            "HF-HUB-DISABLED",
            "note",
            "The server works, but it is disabled in the running hub",
            "A person disabled it. It stays disabled after a restart of the hub.",
            "`holdfast enable SERVER` enables it.",
        ),
        Code(
            "HF-HUB-NOTICE",
            "warning",
            "The running hub reports a fault of its own",
            "The replicas of its fleet do not agree: the store does not answer, a session key, a configuration or a "
            "clock "
            "differs. Or the hub says something else that its users should know.",
            "Do what it says. `holdfast status` shows the hub and its replicas.",
        ),
        Code(
            "HF-HUB-SILENT",
            "warning",
            "A hub serves this configuration and did not answer",
            "It hangs, or it has another version.",
            "Look at its log; restart it.",
        ),
        Code(
            "HF-CROWDED",
            "warning",
            "The server was not judged: doctor's own load slowed it down",
            "Many processes started at the same time on this machine, and this one had too little time of its own.",
            "Check it alone: `holdfast doctor SERVER`. The exit code is 1, because it is not known to work.",
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
    ),
}
"""Every code, in the order of the checks, under headings."""

CODES: Mapping[str, Code] = {code.id: code for group in GROUPS.values() for code in group}
