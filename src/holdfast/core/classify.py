"""Evidence becomes a verdict: transient, permanent or denied, with the reason in words.

Every case:

=====================================================  ==========================================
seen                                                   verdict
=====================================================  ==========================================
HTTP 401                                               denied
HTTP 403 whose body is an authorization outage         transient
HTTP 403 that states no decision (unconfirmed)         denied
HTTP 403 otherwise                                     denied
HTTP 408, 429, 5xx                                     transient
HTTP 404, any other error status                       permanent
redirect that is not followed                          permanent
name does not resolve, of one that never connected     permanent
name does not resolve, of one that did                 transient
refused, on a server that never connected in this run  permanent
refused, on one that did                               transient
host or network unreachable                            transient
reset, closed, any fault after the connection stood    transient
deadline passed                                        transient
TLS does not verify, or is not TLS                     permanent
not MCP, wrong version, endless pages, over a bound    permanent
JSON-RPC internal error (-32603) on the load           transient
any other JSON-RPC error on the load                   permanent
command cannot be started                              permanent
process ended after the handshake                      transient
process ended before: killed from outside, or exit 75  transient
process ended before: any other exit code              permanent
bad definition; credentials over plain http            permanent
the hub that has the server calls it transient         transient
the hub that has the server calls it permanent         permanent
the hub that has the server calls it denied            denied
the headers callable failed on the network             transient
the headers callable failed otherwise                  permanent
the login could not be renewed just now                transient
the user's token could not be exchanged just now       transient
the authorization server gives the user no token       denied
the hub has no free file descriptors                   transient
anything unforeseen                                    permanent
=====================================================  ==========================================

The verdict rests on typed fields alone: never on a text that may hold the URL, the server's
id or the user's arguments, and never on the time that something took.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from http import HTTPStatus

from holdfast.core.evidence import (
    BadConfig,
    Challenge,
    CommandFault,
    CommandUnusable,
    CredentialRefused,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
    Login,
    LoginState,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    OutOfDescriptors,
    OverBound,
    PlainHttpRefused,
    ProcessExit,
    Redirected,
    RpcError,
    TimedOut,
    TlsFailure,
    TlsFault,
    TokenNotRenewed,
    ToldByHub,
    Unexpected,
    read_challenge,
)
from holdfast.core.forbidden import Statement, stated_in
from holdfast.core.messages import FailureStatus
from holdfast.core.process_output import hint_for, need_of, telling_line
from holdfast.core.redact import plain, quoted, quoted_name

__all__ = [
    "Verdict",
    "classify_evidence",
    "classify_load_error",
    "statement_of",
    "status_class",
    "wants_password",
]

EX_TEMPFAIL = 75
"""sysexits.h: the program itself says that a retry can help."""

SIGKILL = 9

STOPPED_FROM_OUTSIDE = frozenset({1, 2, 9, 15})
"""SIGHUP, SIGINT, SIGKILL, SIGTERM: a person or the kernel's memory killer ended it; it did not fail."""

LONGEST_TEXT = 8192
"""How many characters of a text are read: an error is at its beginning, and patterns over names cost time."""

INTERNAL_ERROR = -32603
SHOWN = 200
"""How many characters of a server's own text are shown."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The class of a failure, its reason, its remedy, and the wait that the server asked for."""

    status: FailureStatus
    reason: str
    hint: str = ""
    login: str = ""
    """The command that logs in, where a login would end the failure."""
    scope: tuple[str, ...] = ()
    """The scope that the server asks for in addition."""
    retry_after: float | None = None
    unconfirmed: bool = False
    """A denial that states no decision: it may be an outage of the authorization check."""
    unreachable: bool = False
    """Nothing listens, the name does not resolve, or the host is silent: a bare TCP connect shows when that changes."""
    answers: bool = False
    """It listens and says that it is not ready, or too busy."""


def classify_evidence(  # noqa: PLR0912 - one arm for each kind of evidence
    evidence: Evidence, *, connected_before: bool = False
) -> Verdict:
    """Classify one failure; ``connected_before``: the server was connected in this run."""
    match evidence:
        case HttpStatus():
            return _http(evidence)
        case NetworkFailure():
            return _network(evidence, connected_before=connected_before)
        case TlsFailure():
            return _permanent(*_TLS[evidence.fault], detail=evidence.detail)
        case TimedOut():
            waited = f"no answer within {evidence.after:g} s (waiting for {evidence.doing})"
            said = quoted(evidence.stderr, origin="stderr")
            return Verdict(
                status="transient",
                reason=f"{waited}; {said}" if said else waited,
                hint=f"if it is always this slow, raise {_setting(evidence.setting)}" if evidence.sent else _NO_WAY,
                unreachable=not evidence.sent,
            )
        case Redirected():
            return _permanent(
                f"it redirects to {quoted_name(evidence.location, SHOWN)} (HTTP {evidence.status}), "
                "which is not followed",
                _DOWNGRADED if evidence.downgrade else "if that address is the server you mean, put it into `url`",
            )
        case PlainHttpRefused():
            return _permanent(
                "its credentials would travel unencrypted over plain http",
                'use https, or set `"allowPlainHttp": true` for this server if the network is trusted',
            )
        case CredentialsUnavailable():
            return Verdict(
                status="transient" if evidence.network else "permanent",
                reason=f"the program that gives its headers failed ({evidence.type})",
                hint="the callable passed as `headers` must return a mapping of strings",
            )
        case TokenNotRenewed(exchanged=True):
            return Verdict(
                status="transient",
                reason=f"the hub could not get this user's token for it just now ({evidence.reason})",
                hint="nothing is to be done: the hub asks again as soon as the authorization server answers",
                retry_after=evidence.retry_after,
            )
        case TokenNotRenewed():
            return Verdict(
                status="transient",
                reason=f"its access token has expired and could not be renewed just now ({evidence.reason})",
                hint="the login is still valid: the token is renewed as soon as the authorization server answers",
                retry_after=evidence.retry_after,
            )
        case CredentialRefused():
            return Verdict(status="denied", reason=evidence.reason, hint=evidence.hint)
        case OutOfDescriptors():
            return Verdict(
                status="transient",
                reason=f"the hub itself has no free file descriptors (limit {evidence.limit}); it was not asked",
                hint="raise the limit of the hub: `ulimit -n 65536` before it starts, or `LimitNOFILE=` in its service",
            )
        case NotMcp():
            return _permanent(*_NOT_MCP[evidence.fault], detail=evidence.detail)
        case OverBound():
            return _permanent(f"it exceeded the bound on {evidence.bound} ({evidence.limit})", evidence.hint)
        case RpcError():
            return _rpc(evidence)
        case CommandUnusable():
            reason, hint = _COMMAND[evidence.fault]
            return _permanent(reason.format(evidence.command), hint, detail=evidence.detail)
        case ProcessExit():
            return _exit(evidence)
        case BadConfig():
            return _permanent("; ".join(evidence.problems) or "its definition cannot be used", evidence.hint)
        case ToldByHub():
            return Verdict(
                status=evidence.status,
                reason=evidence.reason,
                hint=evidence.hint or "look at it where the hub runs that has it",
                retry_after=evidence.retry_in,
            )
        case Unexpected():
            return _permanent(
                f"an unexpected error in Holdfast ({evidence.type})",
                "this is a bug in Holdfast: please report it with this text",
                detail=quoted(evidence.detail),
            )


def status_class(status: int, stated: Statement = Statement.DECISION) -> FailureStatus:
    """The class of an HTTP error status; ``stated`` is what the body of a 403 states."""
    if status == 401 or (status == 403 and stated is not Statement.OUTAGE):
        return "denied"
    if status in (403, 408, 429) or 500 <= status <= 599:
        return "transient"
    return "permanent"


def statement_of(seen: HttpStatus) -> Statement:
    """What a refusal states. A scope that is asked for in a header is a decision, with any body."""
    if read_challenge(seen.headers.get("www-authenticate", "")).wants_scope:
        return Statement.DECISION
    return seen.stated if seen.stated is not None else stated_in(seen.body)


def _http(seen: HttpStatus) -> Verdict:
    said = f": {body}" if (body := quoted(seen.body)) and "<" not in body else ""
    code = f"HTTP {seen.status}"
    match status_class(seen.status, statement_of(seen)), seen.status:
        case "denied", 401:
            return _unauthorized(seen)
        case "denied", _:
            return _forbidden(seen, f"({code}{said})")
        case "transient", 403:
            return Verdict(
                status="transient",
                reason=f"the gateway could not complete its authorization check ({code}{said})",
                hint="the gateway's authorization timeout may be too short for a cold start; raise it at the gateway",
                retry_after=seen.retry_after,
                answers=True,
            )
        case "transient", _:
            reason = f"it is limiting requests ({code})" if seen.status == 429 else f"it answered {code}{said}"
            return Verdict(status="transient", reason=reason, retry_after=seen.retry_after, answers=True)
        case _:
            reason, hint = _REJECTED.get(seen.status, _REJECTED[400])
            return _permanent(f"{reason} ({code}{said})", hint)


def _unauthorized(seen: HttpStatus) -> Verdict:
    challenge = read_challenge(seen.headers.get("www-authenticate", ""))
    if wants_password(seen):
        return Verdict(
            status="denied",
            reason="it asks for a user name and a password, and none are configured (HTTP 401)",
            hint='add them to its definition: "headers": {"Authorization": "Basic ${env:CREDENTIALS}"}, where '
            "CREDENTIALS is `user:password` in base64; a login does not help here",
        )
    if seen.login is not None and (challenge.made or not seen.credentials_sent):
        return (
            _wants_scope(seen, challenge, seen.login) if challenge.wants_scope else _wants_login(seen.login, challenge)
        )
    if seen.credentials_sent:
        return Verdict(
            status="denied",
            reason="the credentials configured for this server were rejected (HTTP 401)",
            hint="replace the credentials in its `headers`; a login is used only where they have no Authorization",
        )
    return Verdict(
        status="denied",
        reason="it asks for credentials and none are configured (HTTP 401)",
        hint='log in, or add the credentials to its definition: "headers": {"Authorization": "Bearer ${env:TOKEN}"}',
    )


def wants_password(seen: HttpStatus) -> bool:
    """Whether a request without credentials was refused, and a password is the only way in that the server offers."""
    challenge = seen.headers.get("www-authenticate", "").lower()
    return not seen.credentials_sent and challenge.startswith("basic") and "bearer" not in challenge


def _forbidden(seen: HttpStatus, said: str) -> Verdict:
    challenge = read_challenge(seen.headers.get("www-authenticate", ""))
    if challenge.wants_scope and seen.login is not None:
        return _wants_scope(seen, challenge, seen.login)
    who = (
        "the credentials configured for this server are"
        if seen.credentials_sent
        else "a request without credentials is"
    )
    hint = "ask the operator of the server or its gateway for access, or use credentials that have it"
    unconfirmed = statement_of(seen) is Statement.NO_DECISION
    if unconfirmed and not seen.body.strip():
        hint += (
            "; if everyone is refused, an Envoy gateway may be hiding an authorization outage behind an empty 403:"
            " set `status_on_error: {code: 503}` in its ext_authz filter to tell the two apart"
        )
    elif unconfirmed:
        hint += (
            "; if everyone is refused, AgentGateway may be hiding an authorization outage behind this 403:"
            " set `failureMode: {denyWithStatus: 503}` in its extAuthz policy to tell the two apart"
        )
    return Verdict(
        status="denied",
        reason=f"{who} not allowed to use it {said}",
        hint=hint,
        unconfirmed=unconfirmed and not challenge.made,
    )


def _wants_login(login: Login, challenge: Challenge) -> Verdict:
    """The definition has no credentials of its own: a person has to log in."""
    why, hint = _LOGIN[login.state]
    if login.state is LoginState.EXCHANGED:
        return Verdict(status="denied", reason=f"{why} (HTTP 401)", hint=hint)
    hint = login.note or hint
    if login.state is LoginState.NONE and not challenge.made:
        why = "it asks for credentials and none are configured"
    return Verdict(status="denied", reason=f"{why} (HTTP 401): run `{login.command}`", hint=hint, login=login.command)


def _wants_scope(seen: HttpStatus, challenge: Challenge, login: Login) -> Verdict:
    """The verdict names the scope. A person asks for it: Holdfast never takes more rights silently."""
    wanted = " ".join(challenge.scope)
    named = f"the scope {quoted_name(wanted, 200, ticks=True)}" if wanted else "a scope that it does not name"
    if login.state is LoginState.EXCHANGED:
        return Verdict(
            status="denied",
            reason=f"it asks for {named}, which the user's token does not have (HTTP {seen.status})",
            hint="write the scope into `credentials` of its definition, if the user may have it",
            scope=challenge.scope,
        )
    paste = challenge.scope_to_paste
    command = f"{login.command} --scope {shlex.quote(paste)}" if paste else login.command
    return Verdict(
        status="denied",
        reason=f"it asks for {named}, which the login does not have (HTTP {seen.status}): run `{command}`",
        hint="what was granted before is kept",
        login=command,
        scope=challenge.scope,
    )


def _network(seen: NetworkFailure, *, connected_before: bool) -> Verdict:
    if seen.fault in _UNREACHABLE:
        if connected_before:
            return Verdict(status="transient", reason=_NETWORK[seen.fault], unreachable=True)
        reason, hint = _UNREACHABLE[seen.fault]
        return Verdict(status="permanent", reason=reason, hint=hint, unreachable=True)
    if seen.fault is NetworkFault.PROXY_REFUSED:
        reason = f"the proxy on the way does not connect to it: {seen.detail}"
        return _permanent(reason, "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY")
    if seen.fault is NetworkFault.PROXY_FAILED:
        return Verdict(status="transient", reason=f"the proxy on the way could not connect to it: {seen.detail}")
    if seen.fault is NetworkFault.OTHER and not seen.stood:
        return _permanent("no connection could be made", "check `url` and the network", detail=seen.detail)
    if not seen.sent:
        return Verdict(
            status="transient", reason=f"the request was not sent: {seen.detail or 'the connection is gone'}"
        )
    silent = seen.fault is NetworkFault.UNREACHABLE and not seen.stood
    return Verdict(status="transient", reason=_NETWORK[seen.fault], unreachable=silent)


def _rpc(seen: RpcError) -> Verdict:
    said = quoted(seen.message)
    reason = f"it answered {seen.method} with an error ({seen.code}{f': {said}' if said else ''})"
    if seen.code == INTERNAL_ERROR:
        return Verdict(status="transient", reason=reason)
    return _permanent(reason, "the server's own log says more")


def _exit(seen: ProcessExit) -> Verdict:
    how = f"was killed by signal {-seen.code}" if seen.code < 0 else f"exited with code {seen.code}"
    when = "" if seen.stood else " before it was ready"
    said = _last_said(seen)
    reason = f"its process {how}{when}" + (f"; {said}" if said else "")
    if seen.stood or seen.code == EX_TEMPFAIL or -seen.code in STOPPED_FROM_OUTSIDE:
        return Verdict(status="transient", reason=reason)
    need = need_of(seen.stderr) or need_of(seen.noise)
    return _permanent(reason, hint_for(need) if need is not None else "run its command by hand to see what it needs")


def _last_said(seen: ProcessExit) -> str:
    """What it said about its end. A line of its start, minutes before it was killed, is not about that.

    No process knows of signal 9 before it ends, so nothing that it wrote is about it.
    """
    if -seen.code == SIGKILL:
        return ""
    cause = seen.stderr if seen.recent is None or not (seen.stood or seen.code < 0) else seen.recent
    line = telling_line(cause)
    if line or (seen.stood and seen.recent is not None):
        return quoted(line, origin="stderr")
    return quoted(telling_line(seen.noise), origin="stdout")


def _permanent(reason: str, hint: str, *, detail: str = "") -> Verdict:
    detail = _short(detail)
    return Verdict(status="permanent", reason=f"{reason}: {detail}" if detail else reason, hint=hint)


def _short(text: str) -> str:
    """One line of a detail, cut to a bound. What the server wrote in it is in quotes already."""
    line = " ".join(plain(text[: 8 * SHOWN]).split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1].rstrip() + "…"


_REJECTED = {
    400: ("it rejected the request", "check `url` and `headers` against the server's documentation"),
    404: ("there is no MCP endpoint at its URL", "check the path of `url`: most servers use /mcp, older ones /sse"),
    405: (
        "its URL does not take MCP requests",
        'if it is an older SSE server, set `"type": "sse"` and use its /sse path',
    ),
    407: ("the proxy on the way asks for credentials", "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"),
    **dict.fromkeys(
        (413, 431),
        ("the request is too large for it", "send less; the bound is that of the server, or of a proxy before it"),
    ),
}
"""The statuses that say more than the first of them does; that one speaks for all others."""

_LOGIN = {
    LoginState.NONE: (
        "it asks for a login",
        'if it takes a key and no login, add it to its definition: "headers": {"Authorization": "Bearer ${env:TOKEN}"}',
    ),
    LoginState.EXPIRED: (
        "the login has expired and cannot be renewed",
        "its authorization server gave no refresh token",
    ),
    LoginState.REFUSED: ("the login was revoked, or has ended", "a new login is used at once"),
    LoginState.GOOD: (
        "it rejected the login",
        "if it rejects a new login too, it and its authorization server disagree: tell their operators",
    ),
    LoginState.EXCHANGED: (
        "it rejected the token that the hub got for this user",
        "it and the authorization server in `credentials` of its definition disagree: tell their operators",
    ),
}


def _setting(name: str) -> str:
    """A setting in words; one without ``holdfast.`` before it is of the server itself."""
    return f"`{name}`" if name.startswith("holdfast.") else f"`{name}` in its definition"


_NO_WAY = "check that its host is up, and that no firewall drops the packets"
"""The hint for a connection that never came to stand: raising a limit does not help."""

_UNREACHABLE = {
    NetworkFault.NAME_RESOLUTION: (
        "the host name in its URL does not resolve",
        "check the spelling of `url`, and your DNS",
    ),
    NetworkFault.REFUSED: (
        "nothing listens at its address (connection refused)",
        "start the server, or correct the host and port in `url`",
    ),
}

_DOWNGRADED = "write that path into `url` with https; the server does not know that a proxy before it ends TLS"

_NETWORK = {
    NetworkFault.NAME_RESOLUTION: "the host name in its URL does not resolve, though it did before",
    NetworkFault.REFUSED: "the connection was refused, though it was up before",
    NetworkFault.UNREACHABLE: "its host cannot be reached over the network",
    NetworkFault.RESET: "the connection was reset",
    NetworkFault.CLOSED: "the connection was closed before the answer was complete",
    NetworkFault.OTHER: "the connection failed",
}

_TLS = {
    TlsFault.UNKNOWN_CA: (
        "its TLS certificate is signed by an authority that is not trusted here",
        "if you trust that authority, set SSL_CERT_FILE to a file that holds its certificate",
    ),
    TlsFault.EXPIRED: (
        "its TLS certificate has expired",
        "the server's operator must renew it; check your clock too",
    ),
    TlsFault.NOT_YET_VALID: ("its TLS certificate is not valid yet", "check this machine's clock"),
    TlsFault.WRONG_NAME: (
        "its TLS certificate is for another name",
        "use the host name that the certificate was issued for in `url`",
    ),
    TlsFault.NOT_VERIFIED: ("its TLS certificate does not verify", "the server's operator must replace it"),
    TlsFault.HANDSHAKE: (
        "the TLS handshake failed",
        "if the server speaks plain http, write http:// in `url`",
    ),
    TlsFault.CLIENT_CERTIFICATE: (
        "it demands a TLS client certificate, and Holdfast sends none",
        "let a local proxy with that certificate connect to it, and put the proxy's address into `url`",
    ),
}

_NOT_MCP = {
    NotMcpFault.CONTENT_TYPE: (
        "what answers at its URL is not an MCP server",
        "open the URL in a browser: a web page means that the path or the port is wrong",
    ),
    NotMcpFault.NOT_JSON: (
        "what it sends is not MCP",
        "an MCP server writes only the protocol there; its logs belong on stderr",
    ),
    NotMcpFault.NOT_JSONRPC: (
        "what it sends is JSON, but not MCP",
        "check that `url` or `command` is the MCP server",
    ),
    NotMcpFault.NO_ANSWER: (
        "what answers at its URL does not behave as an MCP server",
        "check that `url` is the MCP server; if it is, tell its authors",
    ),
    NotMcpFault.BROKEN_HTTP: (
        "its answer cannot be read as HTTP",
        "the server is at fault, or a proxy before it: tell its authors",
    ),
    NotMcpFault.BAD_RESULT: (
        "its answer does not fit the protocol",
        "the server is at fault: tell its authors",
    ),
    NotMcpFault.VERSION: (
        "it speaks no protocol version that Holdfast knows",
        "update the server, or Holdfast",
    ),
    NotMcpFault.NO_ENDPOINT: (
        "its event stream named no usable endpoint",
        'if it is a streamable HTTP server, set `"type": "http"`',
    ),
    NotMcpFault.CURSOR_REPEATS: (
        "its list of tools never ends: a page cursor came back",
        "the server is at fault: tell its authors",
    ),
}

_COMMAND = {
    CommandFault.NOT_FOUND: (
        "the command `{}` was not found",
        "install it, or write its full path into `command`",
    ),
    CommandFault.NOT_EXECUTABLE: ("the command `{}` may not be executed", "give it the run bit: chmod +x"),
    CommandFault.BAD_DIRECTORY: ("the folder to start `{}` in does not exist", "correct `cwd`"),
    CommandFault.IS_FOLDER: ("the command `{}` is a folder", "write the path of the program into `command`"),
    CommandFault.BAD_FORMAT: (
        "the command `{}` is not a program",
        "a script needs a first line such as #!/bin/sh",
    ),
    CommandFault.OTHER: ("the command `{}` could not be started", "start it by hand to see why"),
}


_URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*+://\S+?(?=:?(?:\s|\Z))")
"""A URL, without the colon that introduces what follows it."""
_QUOTED = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'(?!\w)|\"[^\"]*\"|`[^`]*`|«[^»]*»")
_JOINED = re.compile(
    r"(?<![\w.])(HTTP/\d(?:\.\d)?|status_code)\b(?![./@-])|(?<!\w)[\w@]+(?:[./\\@_-]+[\w@]+)+(?::\d+)?"
)
"""Words joined by a dot, a slash and the like; the group is what stands before a status."""
_CLASS_NAME = re.compile(
    r"(?<![\w./@-])(?:httpx2?|httpcore2?|anyio|aiohttp|asyncio|requests|urllib3|http|mcp|ssl|socket|builtins)"
    r"(?:\.[a-z_]\w*)*\.(?=[A-Z]\w*(?![\w/@-]|\.\w))"
)
"""The module of a known library before the class of an exception: ``httpx.ReadError``."""

_CODE = r"(?!443\b)([1-5]\d\d)\b(?!\s*(?:[a-z]*s\b|[kmg]?i?b\b|%))"
"""A bare number that can be a status: 443 is a port, and 403 ms, 403 bytes or 403 tools are amounts."""
# Requests writes "Client Error" where others write the phrase. Newer versions of Python and RFC 9110 renamed some.
_PHRASE = "(?:{})\\b".format(
    "|".join(
        (
            "Client Error|Server Error|Payload Too Large|Content Too Large|Unprocessable Content",
            *(re.escape(status.phrase) for status in HTTPStatus if status >= 400),
        )
    )
)
_STATUS_IN_WHOLE = re.compile(
    r"(?:Client|Server) error '([45]\d\d)[^'\n]*' for url '"
    r"|\A([45]\d\d), message="
    rf"|(?<![\w./@-])(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: |\(['\"]?){_CODE}"
)
"""What HTTP clients write: the status in quotes, at the beginning, or after the class of an exception."""
_STATUS_IN_TEXT = re.compile(
    r"(?i)\b(?:HTTP(?:/\d(?:\.\d)?)?(?: code)?|status(?:[ _]?code)?|error(?: code)?|response|returned|got(?: an?)?)"
    rf"\s*[:=(]?\s*{_CODE}"
    rf"|\b([45]\d\d)\s+{_PHRASE}"
    rf"|\A\s*{_CODE}(?=\s*(?::|\.?\s*\Z))"
)
"""A status in a text without names: after its usual words, before its reason phrase, at the start before a colon, or
as the whole text."""
_TO_URL = re.compile(
    rf"(?i)(?: {_PHRASE}|(?<=Client Error|Server Error): {_PHRASE})?[^:\n]*?\bur[il]: (?=[a-z][a-z0-9+.-]*://)"
)
"""The way from a status to its URL, where a colon stands before the URL."""
_DENIED = re.compile(r"(?i)\b(?:unauthori[sz]ed|forbidden|access denied)\b|(?<!\] )\bpermission denied\b")
"""A permission that the file system denied has an errno before it: that is not a denial by the server."""
_PERMANENT = re.compile(
    r"(?i)\b(?:name or service not known|nodename nor servname|temporary failure in name resolution"
    r"|getaddrinfo failed|no address associated|connection refused|connect call failed|not found"
    r"|no such file or directory|certificate verify failed|invalid (?:url|config(?:uration)?)|method not found)\b"
)
_TRANSIENT = re.compile(
    r"(?i)\b(?:timed? ?out|(?:transport|read|write|network|remoteprotocol|localprotocol)error"
    r"|(?:closed|broken)resourceerror|incompleteread(?:error)?|serverdisconnectederror|remotedisconnected"
    r"|transport error|endofstream|eoferror|unexpected eof|socket hang up|econn(?:reset|aborted)|etimedout|epipe"
    r"|(?:read|connect|write|pool)?timeout(?:error|exception)?|deadline exceeded"
    r"|connection (?:was )?reset|connection(?:reset|aborted)(?:error)?|reset by peer|broken ?pipe(?:error)?"
    r"|(?:connection|stream) (?:was )?closed"
    r"|closed connection|server disconnected|disconnected without|incomplete (?:chunked )?read|end of (?:file|stream)"
    r"|peer closed|connection lost|connection aborted|too many requests|internal server error|bad gateway"
    r"|service unavailable|temporarily unavailable|starting up)\b"
)


_STOOD = re.compile(
    r"(?i)\b(?:refused|failed|closed|lost)\b[^:;\n]{0,20}\bafter (?:an? |the )?(?:connect(?:ing|ed|ion)?|handshake)\b"
)
"""The words of a failure whose connection had stood."""


def classify_load_error(error_msg: str, status_code: int | None = None) -> FailureStatus:
    """Classify a failed load from its text and, where known, its HTTP status.

    One mapping serves this and ``classify_evidence``: ``status_class`` for a status, ``stated_in`` for the body of a
    403. A status decides; the text form of an answer gets the verdict of the answer itself. With ``status_code`` the
    text is the body, unless it names the status and the URL first, as HTTP clients do. Without a status, an empty text
    (``str(TimeoutError())``) is transient, because exceptions without a text come from transports. Any other unknown
    text is permanent.
    """
    text = _without_names(error_msg[:LONGEST_TEXT])
    written, end = _status_in(error_msg[:LONGEST_TEXT], text)
    status = status_code if status_code is not None else written
    if status is not None and status >= 400:
        named = status_code is None or (
            status_code == written and _URL.search(error_msg[end : _body_at(error_msg, end)])
        )
        body = error_msg[_body_at(error_msg, end) :] if named else error_msg
        return status_class(status, stated_in(body))
    if not error_msg.strip():
        return "transient"
    if _DENIED.search(text):
        return "denied"
    if _PERMANENT.search(text) and not _STOOD.search(text):
        return "permanent"
    return "transient" if _TRANSIENT.search(text) or _STOOD.search(text) else "permanent"


def _without_names(text: str) -> str:
    """``text`` of the same length without anything that could hold a URL, an id or an argument."""
    for pattern in (_CLASS_NAME, _URL, _QUOTED):
        text = pattern.sub(lambda found: "…" * len(found[0]), text)
    return _JOINED.sub(lambda found: found[1] or "…" * len(found[0]), text)


def _status_in(whole: str, text: str) -> tuple[int | None, int]:
    """The first status that a text states, and where it ends; ``text`` is the ``whole`` without names."""
    found = min(
        filter(None, (_STATUS_IN_WHOLE.search(whole), _STATUS_IN_TEXT.search(text))),
        key=lambda found: found.start(found.lastindex or 0),
        default=None,
    )
    return (int(found[found.lastindex or 0]), found.end()) if found is not None else (None, 0)


def _body_at(text: str, status: int) -> int:
    """Where the body begins in a text whose status ends at ``status``: after the phrase, the URL and a colon."""
    way = _TO_URL.match(text, status)
    url = _URL.match(text, way.end()) if way is not None else None
    colon = text.find(": ", url.end() if url is not None else status)
    return colon + 2 if colon >= 0 else len(text)
