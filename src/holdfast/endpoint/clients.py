"""The clients of the hub, their calls, and the ways to them.

In the legacy era a client is a session. The modern era has no sessions: over HTTP each request is a client of its
own, unless it carries a client key; over stdio the pipe is the client.

A transport gives two things to this package. An ``Outlet`` takes what precedes an answer or belongs to none: the stream
of one request, or the stream that a client keeps open. A ``MessageReply`` is the outlet of one request, and takes its
answer too. Neither ever waits: a message is written when it comes, so the messages of a call go out in the order in
which they came, all of them before its result. What a client does not read is bounded by its transport, so a slow
client delays no other.

In a fleet a request can belong to another replica, for one of two reasons. It continues a call that is pending there,
which the handle of the call says (its tag). Or it goes to a server that keeps a connection for each client, and the
client's connections are there: its home. ``fleet/`` implements ``RequestHomes``; a hub that is alone has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData

from holdfast.access import LOCAL, Principal
from holdfast.core import NameKey
from holdfast.endpoint.message import Message, request_message, settle, with_related_task
from holdfast.endpoint.view import View
from holdfast.errors import HoldfastError
from holdfast.wire import (
    ERA_HEADER,
    LOG_LEVELS,
    TASK_METHODS,
    Bytes,
    Era,
    Fields,
    LoadedObject,
    RawObject,
    dumps,
    text_of,
)

if TYPE_CHECKING:
    from holdfast.endpoint.call_gate import Judgement
    from holdfast.endpoint.find_tools import InnerCall
    from holdfast.endpoint.input_required import OpenCall

__all__ = [
    "ASK_SECONDS",
    "CALL_LOST",
    "Call",
    "Client",
    "Handler",
    "LivesElsewhere",
    "MessageReply",
    "Outlet",
    "Questions",
    "RequestHomes",
    "require_capability",
]

ASK_SECONDS = 600.0
"""How long a person or a model may take to answer a server's request."""

DEFAULT_LOG_LEVEL = "info"
"""What a legacy client gets that has set no level."""

ABSENT_SECONDS = 60.0
"""After this time without a stream and without a request, a client counts as gone for a server's requests."""

_CHANGED: Final = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
    "templates": "notifications/resources/list_changed",
}
"""How a legacy client learns that a list of this kind changed."""

_CAPABILITY = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}


class Outlet(Protocol):
    """A way to a client: the stream of one request, or the stream that it keeps open for notifications."""

    @property
    def is_open(self) -> bool:
        """Whether the client can be reached on it now."""

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        """Send a notification; ``everywhere`` if each replica of a fleet tells the same. Never waits."""

    async def reach(self, method: str) -> Outlet:
        """The outlet on which the client can be asked; raises ``MCPError`` if there is none. It may take a moment."""

    def put_question(self, message: bytes) -> None:
        """Send a request of the hub; raises ``MCPError`` if the client takes none."""


class MessageReply(Outlet, Protocol):
    """The way back for one request of a client. It takes exactly one answer; what comes after that is dropped."""

    def result(self, request_id: Bytes, result: RawObject | bytes) -> None:
        """The result."""

    def error(self, request_id: Bytes | None, error: ErrorData) -> None:
        """The error; without an id where the message is no request that can be answered under its own."""

    def cancelled(self, request_id: Bytes) -> None:
        """The client gave the request up: an answer only where the transport needs one."""


class Questions:
    """The requests of servers that one client has not answered yet.

    A number is used once, and numbers rise: so it is known of every number whether it was given out here. ``first`` is
    chosen by the transport: another process may have asked the same client before.
    """

    __slots__ = ("_first", "_last", "_open")

    def __init__(self, first: int = 0) -> None:
        self._first = self._last = first
        self._open: dict[int, tuple[asyncio.Future[dict[str, Any]], Outlet]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    async def ask(self, outlet: Outlet, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Put a question on an outlet and wait for the client's answer; raises ``MCPError`` if there is none."""
        outlet = await outlet.reach(method)
        self._last += 1
        number = self._last
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        outlet.put_question(request_message(number, method, params))
        self._open[number] = answer, outlet
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await answer
        except TimeoutError:
            self._withdraw(number, outlet, "it took too long")
            raise MCPError(INVALID_REQUEST, f"the client did not answer {method} in time") from None
        except asyncio.CancelledError:
            self._withdraw(number, outlet, "the answer is no longer needed")
            raise
        finally:
            del self._open[number]

    def answered(self, message: Message) -> bool:
        """Take the client's answer; False if no such question was asked here."""
        number = message.key
        if not isinstance(number, int) or not self._first < number <= self._last:
            return False
        # One that is not open was asked here and is over: its answer came late, and no other replica knows it either.
        question, _ = self._open.get(number, (None, None))
        if question is not None and not question.done():
            settle(question, message)
        return True

    def end(self, why: str) -> None:
        """Tell the client that it need not answer, and the servers that no answer comes."""
        for number, (question, outlet) in list(self._open.items()):
            if not question.done():
                self._withdraw(number, outlet, why)
                question.set_exception(MCPError(INVALID_REQUEST, f"the client cannot answer: {why}"))

    def _withdraw(self, number: int, outlet: Outlet, why: str) -> None:
        outlet.tell("notifications/cancelled", {"requestId": number, "reason": why})

    def __repr__(self) -> str:
        return f"<Questions open={sorted(self._open)}>"


@dataclass(eq=False, slots=True)
class Client:
    """One client, for as long as it is connected."""

    view: View
    outlet: Outlet
    """Its own stream of notifications; for a modern request, the stream of that request."""
    capabilities: Mapping[str, Any]
    modern: bool
    owner: Hashable
    """The owner of the connections that are not shared."""
    identity: Principal = LOCAL
    """The principal that it acts for. Notices outside a call are judged by these groups and scopes."""
    questions: Questions = field(default_factory=Questions)
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    persistent: bool = False
    """Whether the owner outlives this object: a pipe, or a client with a key, sends many modern requests."""
    expires: bool = False
    """Whether the owner can leave without a notice; its connections then end after a time without use."""
    home: str = ""
    """The replica that its session names (``home_name``); empty without a session."""
    rebuilt: bool = False
    """Whether it is a session that was rebuilt from its id: connections of its own may have been lost."""
    restarted: frozenset[str] = frozenset()
    """The servers whose connection was made again for it, and it has not been told yet."""
    key: str | None = None
    """What a hub behind this one recognises it by; None if its next request cannot be told from those of others."""
    via: tuple[str, ...] = ()
    """The hubs that its requests pass before this one."""
    program: str = ""
    """What it calls itself; empty if it does not say."""
    calls: int = 0
    """How many of its calls are at servers."""
    seen_at: float = 0.0
    """When it last sent a message."""
    log_level: str | None = None
    subscribed: set[tuple[str, str]] = field(default_factory=set)
    """Server and original URI of each resource that it subscribed to."""
    listed: dict[str, str] | None = field(default_factory=dict)
    """The digest of each list that it was given, by method; None for a rebuilt session if it is not known."""

    def __post_init__(self) -> None:
        self.seen_at = self.clock()

    @property
    def principal(self) -> str:
        """The name of the principal that it acts for."""
        return self.identity.name

    @property
    def seen(self) -> View:
        """What it may see of its endpoint, by the rules in force now."""
        return self.view.seen_by(self.identity)

    def is_present(self) -> bool:
        """Whether it is still there: a client can leave without a word (no stream, no request for a while)."""
        return self.outlet.is_open or self.clock() - self.seen_at < ABSENT_SECONDS

    def wants_log(self, level: object) -> bool:
        """Whether it wants a log message of this level."""
        if self.log_level is None or level not in LOG_LEVELS:
            return not self.modern
        return LOG_LEVELS.index(str(level)) >= LOG_LEVELS.index(self.log_level)

    # What concerns it outside its calls.

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send it a request of a server; a modern client can receive one only in the result of its own call."""
        require_capability(self, method, params)
        if self.modern:
            raise MCPError(INVALID_REQUEST, f"{method} cannot reach this client now: it has no call in flight")
        return await self.questions.ask(self.outlet, method, params)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send it a notification of a server, if it wants it."""
        if method != "notifications/message" or self.wants_log((params or {}).get("level")):
            self.outlet.tell(method, params)

    def changed(self, kinds: Collection[str]) -> None:
        """Tell a legacy client that its lists of these kinds look different."""
        for method in dict.fromkeys(method for kind, method in _CHANGED.items() if kind in kinds):
            self.outlet.tell(method, None, everywhere=True)

    def updated(self, server: str, uri: str, *, everywhere: bool) -> None:
        """A resource changed; ``everywhere`` if each replica that has this session tells it the same."""
        if (server, uri) in self.subscribed:
            shown = self.view.uris.shown(server, uri)
            self.outlet.tell("notifications/resources/updated", {"uri": shown}, everywhere=everywhere)

    def __repr__(self) -> str:
        era = "modern" if self.modern else "legacy"
        return f"<Client {era} of {self.view.server or 'all servers'} principal={self.principal} calls={self.calls}>"


def require_capability(client: Client, method: str, params: Mapping[str, Any] | None) -> None:
    """Raise if the client cannot answer this request: the server gets an error, not silence."""
    capability = _CAPABILITY[method]
    declared = client.capabilities.get(capability)
    if declared is None:
        raise MCPError(INVALID_REQUEST, f"the client does not support {capability}")
    mode = (params or {}).get("mode", "form")
    if method == "elicitation/create" and mode != "form" and mode not in declared:
        raise MCPError(INVALID_REQUEST, f"the client does not support elicitation by {mode}")


class Call(msgspec.Struct, eq=False):
    """One request of a client, from its message to its answer; at the server it is the ``Caller`` of the wire.

    It runs in the task of its request. ``cancel`` ends what that task does for it, and no more: the task goes on with
    the next message of its connection.
    """

    message: Message
    client: Client
    reply: MessageReply
    view: View
    """What its sender may see of the endpoint (``McpServer.answer``)."""
    version: str
    headers: Mapping[str, str]
    _task: asyncio.Task[Any] | None
    """The task that serves it."""
    identity: Principal
    """Who sends it: another request of its client may have had other groups and scopes."""
    method: str = ""
    params: Fields = {}
    """Its parameters, as the bytes that they came in."""
    meta: Mapping[str, Any] = {}
    progress_token: str | int | None = None
    """What its progress is reported under, if that is wanted."""
    principal: str = ""
    """The name of the principal that calls."""
    hidden_by: str = ""
    """The access rule for which the name that it asks for is not there for its sender."""
    sent_before: bool = False
    """Whether another hub got it before and gave no answer: a server may have acted on it."""
    server: str = ""
    """The server that it goes to, once that is known."""
    sent: Fields = {}
    """Its parameters for that server."""
    repeatable: bool = False
    """Whether it may be made a second time: its tool is declared read-only or idempotent, or it only reads."""
    tool: NameKey | None = None
    """The tool that it calls, by its name at the server."""
    inner: InnerCall | None = None
    """In find mode, the call that a model asks for through ``call_tool``."""
    failed: HoldfastError | MCPError | None = None
    """Why it failed, where its result says that to a model."""
    judged: Judgement | None = None
    """What was decided about it, where there is something to decide."""
    trace_id: str = ""
    """The id of its trace, where the hub makes one."""
    open: OpenCall | None = None
    """Takes the questions of a legacy server to a modern client, over several requests of that client."""
    task: str | None = None
    """The id under which the client knows the task that it asks about."""
    cancelled: bool = False
    done: bool = False

    def __post_init__(self) -> None:
        message = self.message
        self.method = message.method or ""
        self.params = self.sent = message.params
        self.principal = self.identity.name
        if self.method in TASK_METHODS:
            self.task = text_of(self.params.get("taskId"))
        if "_meta" in self.params:
            self.meta = message.meta
            token = self.meta.get("progressToken")
            self.progress_token = token if type(token) in (str, int) else None

    def to(self, server: str, params: Fields, *, repeatable: bool) -> None:
        """It goes to this server, with these parameters."""
        self.server, self.sent, self.repeatable = server, params, repeatable

    # Its end.

    def cancel(self) -> None:
        """Its client gave it up."""
        if not self.done and not self.cancelled and self._task is not None:
            self.cancelled = True
            self._task.cancel()

    def absorbs_cancellation(self) -> bool:
        """Whether a cancellation was meant for the call alone; then its task is no longer cancelled.

        asyncio counts the cancellations of a task. ``cancel`` asked for one. If another one is left after that is taken
        back, the task itself has to end: its connection did, or the hub does.
        """
        return self.cancelled and self._task is not None and self._task.uncancel() == 0

    # What the wire uses (``Caller``).

    @property
    def era(self) -> Era:
        """The era that the client speaks; behind another hub, the era of that hub's client."""
        if self.identity.source == "hub" and self.headers.get(ERA_HEADER.lower()) == "legacy":
            return "legacy"
        return "modern" if self.client.modern else "legacy"

    @property
    def bound_to(self) -> str:
        """To whom its tasks and kept results belong: the principal, and its rights if they are limited.

        A token with fewer rights of the same principal does not get at what one with more rights called.
        """
        rights = self.view.rights
        return f"{self.principal}\0{rights}" if rights else self.principal

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declares."""
        return self.client.capabilities

    @property
    def client_key(self) -> str | None:
        """What a hub behind this one recognises the client by."""
        return self.client.key

    @property
    def via(self) -> tuple[str, ...]:
        """The hubs that the request has passed before this one."""
        return self.client.via

    @property
    def log_level(self) -> str | None:
        """What a modern server is asked to log. A modern client asks itself; a legacy one expects logs unasked."""
        return None if self.client.modern else self.client.log_level or DEFAULT_LOG_LEVEL

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a server's request to the client, on the stream of the client's own request."""
        require_capability(self.client, method, params)
        if self.open is not None:
            return await self.open.ask(method, params)
        if self.client.modern:
            raise MCPError(INTERNAL_ERROR, f"{method} cannot reach this client: its protocol knows no such request")
        return await self.client.questions.ask(self.reply, method, with_related_task(params, self.task))

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification, if the client wants it."""
        if method == "notifications/message" and not self.client.wants_log((params or {}).get("level")):
            return
        if method == "notifications/elicitation/complete" and self.client.modern:
            return  # the modern era has no such notification: the client learns it when it repeats the request
        if self.open is not None:
            self.open.tell(method, params)
        elif not self.done:  # nothing follows the answer, what the server may still say
            self.reply.tell(method, params)

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, if the client asked for it."""
        token = self.open.token if self.open is not None else self.progress_token
        if token is None:
            return
        params = LoadedObject(progressToken=token, progress=progress)
        raw = b'{"progressToken":%b,"progress":%b' % (_as_json(token), _as_json(progress))
        if total is not None:
            params["total"] = total
            raw += b',"total":' + _as_json(total)
        if message is not None:
            params["message"] = message
            raw += b',"message":' + dumps(message)
        params.raw = raw + b"}"
        self.tell("notifications/progress", params)

    def __repr__(self) -> str:
        state = "done" if self.done else "cancelled" if self.cancelled else "in flight"
        return f"<Call {self.message.key!r} {self.method} to {self.server or '?'} {self.era} {state}>"


Handler: TypeAlias = Callable[[Call], Awaitable[RawObject]]
"""Gives the result of a request; raises ``MCPError``, ``HoldfastError`` and ``LivesElsewhere``."""


def _as_json(value: float | str) -> bytes:
    """A finite number or a text as JSON; a number needs no encoder."""
    if type(value) is int:
        return b"%d" % value
    return repr(value).encode() if type(value) is float else dumps(value)


NO_HEADERS: Final[Mapping[str, str]] = {}


# Requests that belong to another replica: how the endpoint asks which one, and how it says so.


class LivesElsewhere(Exception):
    """A request belongs to another replica; nothing of it was done here."""

    def __init__(self, replica: str, lost: str = "", *, moves: Callable[[], Awaitable[bool]] | None = None) -> None:
        super().__init__(f"the request belongs to the replica {replica}")
        self.replica = replica
        self.lost = lost
        """What to say if that replica does not answer."""
        self.moves = moves
        """Looks again who is present; whether the request belongs to another replica now. None if it never moves."""


CALL_LOST: Final = (
    "the call that this requestState belongs to is pending on a replica that does not answer. "
    "Make the call again, without requestState."
)


class RequestHomes(Protocol):
    """Finds the replica of a request; one for all endpoints of a hub."""

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""

    @property
    def long_tag(self) -> str:
        """Names this replica where another one with the same short tag must not be meant."""

    async def replica_of(self, tag: str) -> str | None:
        """The other replica with this tag, if it is present."""

    def check_task(self, home: str) -> bool:
        """Raise ``LivesElsewhere`` if another replica has a task; False if the one that had it is gone."""

    async def check(self, client: Client) -> None:
        """Raise ``LivesElsewhere`` if another replica has the connections of this client."""

    def known_elsewhere(self, client: Client) -> str | None:
        """The other replica that has the connections of a client, if one is known."""

    def lost_connection(self, client: Client) -> bool:
        """Whether a client had connections that are gone."""
