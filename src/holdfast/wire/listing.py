"""List tools, prompts, resources and templates to the last page, within bounds (SEC-4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import METHOD_NOT_FOUND
from pydantic import ValidationError

from holdfast.config import Limits
from holdfast.core import (
    Evidence,
    HttpStatus,
    NetworkFailure,
    NotMcp,
    NotMcpFault,
    OverBound,
    ProcessExit,
    RpcError,
    TimedOut,
)
from holdfast.errors import ServerFailure
from holdfast.wire.rpc import RawRequest, RawResult, first_error

__all__ = [
    "Offer",
    "OfferKind",
    "Offers",
    "ToolInfo",
    "list_other_offers",
    "list_tool_offers",
    "list_tools",
    "tool_info",
]

OfferKind: TypeAlias = Literal["tools", "prompts", "resources", "templates"]

Offer: TypeAlias = tuple[str, Mapping[str, Any]]
"""One tool, prompt, resource or template: its name or URI, and its description as the server sent it."""

_T = TypeVar("_T")
_Page: TypeAlias = "tuple[list[_T], str | None]"


@dataclass(frozen=True, kw_only=True)
class ToolInfo:
    """A tool as its server describes it."""

    name: str
    title: str | None = None
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    needs_task: bool = False
    """Whether the server runs it only as a task."""


async def list_tools(session: ClientSession, limits: Limits, received: Callable[[], int]) -> tuple[ToolInfo, ...]:
    """Every tool, over all pages. A server that does not know ``tools/list`` has none.

    ``received`` returns how many bytes the server has sent so far.
    """
    return tuple(map(_info, await _every(_tools(session), "tools/list", limits, received)))


class Offers(dict[OfferKind, "tuple[Offer, ...]"]):
    """Everything that a server offers, by kind, and the kinds whose list failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[OfferKind, Evidence] = {}


async def list_tool_offers(session: ClientSession, limits: Limits, received: Callable[[], int]) -> Offers:
    """The tools, as the first part of what a server offers."""
    offers = Offers()
    tools = await _every(_tools(session), "tools/list", limits, received)
    offers["tools"] = tuple((tool.name, _raw(tool)) for tool in tools)
    return offers


async def list_other_offers(
    session: ClientSession, limits: Limits, received: Callable[[], int], offers: Offers, *, until: float
) -> None:
    """Add every other kind that the server's capabilities name.

    A list that fails takes no other with it (LIFE-26), unless the connection itself is lost.
    """
    can = session.server_capabilities or types.ServerCapabilities()
    for kind, (method, key, name, capability) in _OTHERS.items():
        if getattr(can, capability) is None:
            continue
        within = max(min(OTHER_LIST_SECONDS, until - anyio.current_time()), 0.0)
        try:
            with anyio.fail_after(within):
                items = await _every(_raw_pages(session, method, key), method, limits, received)
                offers[kind] = tuple((str(item[name]), item) for item in items)
        except TimeoutError:
            offers.failures[kind] = TimedOut(doing=f"the answer to {method}", after=round(within, 1))
        except ServerFailure as failure:
            if _connection_is_lost(failure.evidence):
                raise
            offers.failures[kind] = failure.evidence


OTHER_LIST_SECONDS = 5.0
"""How long a list other than that of the tools may take. A server that is silent there is up without it."""


def _connection_is_lost(seen: Evidence) -> bool:
    """Whether no other list can be read on this connection either; a 404 says that the session expired."""
    return isinstance(seen, NetworkFailure | ProcessExit) or (isinstance(seen, HttpStatus) and seen.status == 404)


_OTHERS: Mapping[OfferKind, tuple[str, str, str, str]] = {
    "prompts": ("prompts/list", "prompts", "name", "prompts"),
    "resources": ("resources/list", "resources", "uri", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate", "resources"),
}
"""Kind: the method that lists it, the key of the list, the key of an item's name, the capability that it needs."""


async def _every(
    page: Callable[[str | None], Awaitable[_Page[_T]]], method: str, limits: Limits, received: Callable[[], int]
) -> list[_T]:
    """All items over all pages; raises if a bound is passed or a cursor repeats."""
    before = received()
    items: list[_T] = []
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(limits.pages):
        more, cursor = await _asked(page, cursor, method)
        items += more
        if len(items) > limits.catalog_items:
            raise _over(f"the number of {_noun(method)}", limits.catalog_items, "catalogItems")
        if received() - before > limits.catalog_bytes:
            raise _over("the size of a list", limits.catalog_bytes, "catalogBytes")
        if not cursor:
            return items
        if cursor in seen:
            raise ServerFailure(NotMcp(fault=NotMcpFault.CURSOR_REPEATS))
        seen.add(cursor)
    raise _over("the pages of a list", limits.pages, "pages")


async def _asked(page: Callable[[str | None], Awaitable[_Page[_T]]], cursor: str | None, method: str) -> _Page[_T]:
    try:
        return await page(cursor)
    except MCPError as exc:
        if exc.code == METHOD_NOT_FOUND and cursor is None:
            return [], None
        raise ServerFailure(RpcError(method=method, code=exc.code, message=exc.message)) from exc
    except ValidationError as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc


def _tools(session: ClientSession) -> Callable[[str | None], Awaitable[_Page[types.Tool]]]:
    """List by the session's own method: it learns there which arguments to mirror into headers."""

    async def page(cursor: str | None) -> _Page[types.Tool]:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        result = await session.list_tools(params=params)
        return result.tools, result.next_cursor

    return page


def _raw_pages(
    session: ClientSession, method: str, key: str
) -> Callable[[str | None], Awaitable[_Page[Mapping[str, Any]]]]:
    async def page(cursor: str | None) -> _Page[Mapping[str, Any]]:
        params = {"cursor": cursor} if cursor is not None else {}
        result = await session.send_request(RawRequest(method=method, params=params), RawResult)
        following = result.raw.get("nextCursor")
        return list(result.raw[key]), following if isinstance(following, str) else None

    return page


def _over(bound: str, limit: int, key: str) -> ServerFailure:
    return ServerFailure(OverBound(bound=bound, limit=limit, setting=f"holdfast.limits.{key}"))


def _noun(method: str) -> str:
    return method.removesuffix("/list").replace("/", " ")


def _raw(tool: types.Tool) -> Mapping[str, Any]:
    return tool.model_dump(by_alias=True, mode="json", exclude_unset=True)


def _info(tool: types.Tool) -> ToolInfo:
    return ToolInfo(
        name=tool.name,
        title=tool.title,
        description=tool.description or "",
        input_schema=MappingProxyType(tool.input_schema),
        output_schema=MappingProxyType(tool.output_schema) if tool.output_schema is not None else None,
        annotations=_dumped(tool.annotations),
        meta=MappingProxyType(dict(tool.meta or {})),
        needs_task=tool.execution is not None and tool.execution.task_support == "required",
    )


def tool_info(name: str, raw: Mapping[str, Any]) -> ToolInfo:
    """A tool from its server's description, under the name that it has in the hub."""
    return ToolInfo(
        name=name,
        title=raw.get("title"),
        description=raw.get("description") or "",
        input_schema=MappingProxyType(dict(raw.get("inputSchema") or {})),
        output_schema=MappingProxyType(dict(raw["outputSchema"])) if raw.get("outputSchema") else None,
        annotations=MappingProxyType(dict(raw.get("annotations") or {})),
        meta=MappingProxyType(dict(raw.get("_meta") or {})),
    )


def _dumped(annotations: types.ToolAnnotations | None) -> Mapping[str, Any]:
    if annotations is None:
        return MappingProxyType({})
    return MappingProxyType(annotations.model_dump(by_alias=True, exclude_none=True))
