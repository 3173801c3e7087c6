"""A client of the control API: `holdfast status` and `doctor` use it.

Answers are the models of ``models.py``. Errors are ``NoHub`` (the hub cannot be reached) or ``HubRefused`` (it
refused, with its reason).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from holdfast.control.hub_finder import TOKEN_VARIABLE, RunningHub
from holdfast.control.models import (
    ApiError,
    ApiModel,
    ApprovalList,
    Approve,
    ApprovedTexts,
    CatalogView,
    DecideCall,
    HubView,
    LogLine,
    Logs,
    Server,
    Servers,
    SignInCode,
    TargetsView,
    WaitingCall,
    WaitingCalls,
)
from holdfast.core import (
    ApprovalKind,
    Evidence,
    NetworkFailure,
    NetworkFault,
    PlainHttpRefused,
    classify_evidence,
    command_line,
    mask_url,
)
from holdfast.errors import HubRefused, NoHub, ServerFailure
from holdfast.wire import ApiClient, HttpAnswer

__all__ = ["ControlClient", "HubConnection", "HubEvent", "ServerAction", "trust_in"]

ANSWER_SECONDS = 10.0
"""A hub on this machine answers in milliseconds; after this time it is stuck."""

RECONNECT_SECONDS = 120.0
"""A reconnect answers when its dial is over, and a dial may take long."""

SILENCE_SECONDS = 45.0
"""A stream sends a comment every 15 s; this is three of them."""

_Model = TypeVar("_Model", bound=ApiModel)


ServerAction: TypeAlias = Literal["reconnect", "enable", "disable"]


class HubEvent(NamedTuple):
    """One event of the hub's stream: what happened, and its data as JSON."""

    name: str
    data: str


class HubConnection:
    """Asks one hub, and explains every failure: ``NoHub`` if it cannot be reached, ``HubRefused`` with its reason."""

    def __init__(self, found: RunningHub) -> None:
        self._found = found
        with self._explained():
            self._api = ApiClient(
                found.url.rstrip("/"),
                headers={"authorization": f"Bearer {found.token}"},
                tls=trust_in(found.certificate),
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._api.__aexit__(kind, exc, traceback)

    @property
    def url(self) -> str:
        """The hub's address, masked."""
        return mask_url(self._found.url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def _ask(
        self,
        model: type[_Model],
        method: str,
        path: str,
        *,
        body: ApiModel | None = None,
        within: float = ANSWER_SECONDS,
    ) -> _Model:
        content = body.model_dump_json().encode() if body is not None else None
        with self._explained():
            answer = await self._api.ask(method, path, body=content, within=within)
        if answer.status != 200:
            raise self._refusal(answer)
        return self._read(model, answer.body)

    async def _events(self, path: str) -> AsyncGenerator[HubEvent, None]:
        with self._explained():
            async with aclosing(self._api.events(path, silence=SILENCE_SECONDS)) as events:
                async for event in events:
                    if isinstance(event, HttpAnswer):
                        raise self._refusal(event)
                    yield HubEvent(event.name, event.data.decode("utf-8", "replace"))

    def _read(self, model: type[_Model], data: bytes | str) -> _Model:
        try:
            return model.model_validate_json(data)
        except ValidationError as exc:
            hint = "check that this is the address of a hub, and that its version fits this command"
            raise NoHub(f"the answer from {self.url} is not that of a hub", hint=hint) from exc

    def _refusal(self, answer: HttpAnswer) -> HubRefused | NoHub:
        try:
            said = ApiError.model_validate_json(answer.body)
        except ValidationError:
            hint = "check that this is the address of a hub"
            return NoHub(f"the answer from {self.url} is not that of a hub (HTTP {answer.status})", hint=hint)
        return HubRefused(said.error, status=answer.status, hint=said.hint)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ServerFailure as failure:
            raise self._out_of_reach(failure.evidence) from None

    def _out_of_reach(self, seen: Evidence) -> NoHub:
        match seen:
            case NetworkFailure(fault=NetworkFault.REFUSED):
                return NoHub(f"no hub answers at {self.url}", hint=f"start it with `{command_line('serve')}`")
            case PlainHttpRefused():
                hint = "use https, or a tunnel to a port on this machine"
                return NoHub(f"the control token would travel unencrypted to {self.url}", hint=hint)
        verdict = classify_evidence(seen)
        hint = verdict.hint or f"check that it is still running; --url and {TOKEN_VARIABLE} choose the hub"
        return NoHub(f"the hub at {self.url} cannot be reached: {verdict.reason}", hint=hint)


class ControlClient(HubConnection):
    """All that commands ask a hub. Use it as ``async with`` on the result of ``find_hub()``."""

    # Read.

    async def hub(self) -> HubView:
        """Return the hub itself."""
        return await self._ask(HubView, "GET", "/api/hub")

    async def servers(self) -> Servers:
        """Return all servers."""
        return await self._ask(Servers, "GET", "/api/servers")

    async def server(self, server: str) -> Server:
        """Return one server."""
        return await self._ask(Server, "GET", _of(server))

    async def catalog(self) -> CatalogView:
        """Return the published catalog."""
        return await self._ask(CatalogView, "GET", "/api/catalog")

    async def approvals(self) -> ApprovalList:
        """Return every tool that changed since it was first seen."""
        return await self._ask(ApprovalList, "GET", "/api/approvals")

    async def approved(self) -> ApprovedTexts:
        """Return what is approved, for a lock."""
        return await self._ask(ApprovedTexts, "GET", "/api/approvals/approved")

    async def targets(self) -> TargetsView:
        """Return the hub's servers as targets of a gateway."""
        return await self._ask(TargetsView, "GET", "/api/targets")

    async def logs(self, server: str, *, lines: int = 200) -> Logs:
        """Return the last log lines of a server."""
        return await self._ask(Logs, "GET", f"{_of(server)}/logs?lines={lines}")

    async def follow(self, server: str, *, lines: int = 0) -> AsyncGenerator[LogLine, None]:
        """Yield the last log lines of a server and new ones, until the hub ends or the server is removed."""
        first = f"?lines={lines}" if lines else ""
        async with aclosing(self._events(f"{_of(server)}/logs/stream{first}")) as events:
            async for event in events:
                if event.name == "line":
                    yield self._read(LogLine, event.data)

    def events(self) -> AsyncGenerator[HubEvent, None]:
        """Yield every event until the hub ends; the first one is ``hello``, with a ``HubView``.

        Close it if you leave it sooner: ``async with aclosing(hub.events()) as events``.
        """
        return self._events("/api/events")

    # Change.

    async def act(self, server: str, action: ServerAction) -> Server:
        """Reconnect a server now, or switch it on or off. The answer comes when that is done."""
        return await self._ask(Server, "POST", f"{_of(server)}/{action}", within=RECONNECT_SECONDS)

    async def approve(
        self, server: str, *, tool: str | None = None, mark: str | None = None, kind: ApprovalKind = "tool"
    ) -> Server:
        """Approve the change of one tool, or of all tools of a server."""
        return await self._ask(Server, "POST", f"{_of(server)}/approve", body=Approve(tool=tool, mark=mark, kind=kind))

    async def calls(self) -> WaitingCalls:
        """Return the calls that wait for a person."""
        return await self._ask(WaitingCalls, "GET", "/api/calls")

    async def decide(self, call: str, *, approve: bool, reason: str = "") -> WaitingCall:
        """Approve or refuse a call that waits."""
        body = DecideCall(approve=approve, reason=reason)
        return await self._ask(WaitingCall, "POST", f"/api/calls/{quote(call, safe='')}", body=body)

    async def code(self) -> SignInCode:
        """Make a code that signs in one browser."""
        return await self._ask(SignInCode, "POST", "/api/codes")


def trust_in(certificate: str) -> ssl.SSLContext | None:
    """Trusts the certificate of a hub of this user, which its own file names; None for the usual authorities.

    A hub often has a certificate of a private authority, for the name that other machines use.
    """
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # it is this one certificate, and no other
    # The file may hold the hub's certificate without that of its authority. OpenSSL then needs this flag to end there.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=certificate)
    except (OSError, ssl.SSLError):
        return None  # the usual authorities decide, and host names are checked: never less than without the file
    return context


def _of(server: str) -> str:
    return f"/api/servers/{quote(server, safe='')}"
