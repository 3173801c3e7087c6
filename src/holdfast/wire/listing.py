"""List tools, prompts, resources and templates to the last page, within bounds (SEC-4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY, find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND
from pydantic import BaseModel, ValidationError

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
from holdfast.wire.envelope import BadJson, Bytes, RawObject, items, loads, text_of
from holdfast.wire.rpc import first_error

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

log = logging.getLogger(__name__)

OfferKind: TypeAlias = Literal["tools", "prompts", "resources", "templates"]

Offer: TypeAlias = tuple[str, Mapping[str, Any]]
"""One tool, prompt, resource or template: its name or URI, and its description as the server sent it."""

_T = TypeVar("_T")


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


class Lister(Protocol):
    """A connection that lists: one page at a time, as the bytes that it came in."""

    @property
    def modern(self) -> bool:
        """Whether it speaks the modern era."""

    @property
    def offers(self) -> types.ServerCapabilities:
        """What the server says that it has."""

    @property
    def received(self) -> int:
        """How many bytes the server has sent so far."""

    def mirrored(self, headers: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
        """Use these headers for the arguments of tools: by tool, the header of each argument."""

    async def list_page(self, method: str, cursor: str | None) -> RawObject:
        """One page of a list; raises ``MCPError`` for an error answer."""


async def list_tools(connection: Lister, limits: Limits) -> tuple[ToolInfo, ...]:
    """Every tool, over all pages. A server that does not know ``tools/list`` has none."""
    return tuple([_info(tool) for tool, _ in await _tools(connection, limits)])


class Offers(dict[OfferKind, "tuple[Offer, ...]"]):
    """Everything that a server offers, by kind, and the kinds whose list failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[OfferKind, Evidence] = {}


async def list_tool_offers(connection: Lister, limits: Limits) -> Offers:
    """The tools, as the first part of what a server offers."""
    offers = Offers()
    offers["tools"] = tuple([(tool.name, raw) for tool, raw in await _tools(connection, limits)])
    return offers


async def list_other_offers(connection: Lister, limits: Limits, offers: Offers, *, until: float) -> None:
    """Add every other kind that the server's capabilities name.

    A list that fails takes no other with it (LIFE-26), unless the connection itself is lost.
    """
    can = connection.offers
    for kind, (method, key, name, capability) in _OTHERS.items():
        if getattr(can, capability) is None:
            continue
        within = max(min(OTHER_LIST_SECONDS, until - anyio.current_time()), 0.0)
        try:
            with anyio.fail_after(within):
                found = await _every(connection, method, key, limits, partial(_loaded, _MODELS[kind]))
                offers[kind] = tuple([(str(item[name]), item) for item in found])
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

_MODELS: Mapping[OfferKind, type[BaseModel]] = {
    "prompts": types.Prompt,
    "resources": types.Resource,
    "templates": types.ResourceTemplate,
}


async def _tools(connection: Lister, limits: Limits) -> list[tuple[types.Tool, Mapping[str, Any]]]:
    """All tools, without those whose headers are invalid, which a client of the modern era must drop."""
    mirrored: dict[str, Mapping[tuple[str, ...], str]] = {}

    def read(raw: bytes) -> tuple[types.Tool, Mapping[str, Any]] | None:
        value = loads(raw)
        tool = types.Tool.model_validate(value, by_name=False)
        if connection.modern and X_MCP_HEADER_KEY.encode() in raw:
            if (reason := find_invalid_x_mcp_header(tool.input_schema)) is not None:
                log.warning("a tool is dropped, its %s is invalid: %s", X_MCP_HEADER_KEY, reason)
                return None
            mirrored[tool.name] = x_mcp_header_map(tool.input_schema)
        return tool, value

    tools = await _every(connection, "tools/list", "tools", limits, read)
    connection.mirrored(mirrored)
    return tools


def _loaded(model: type[BaseModel], raw: bytes) -> Mapping[str, Any]:
    value: Mapping[str, Any] = loads(raw)
    model.model_validate(value, by_name=False)
    return value


async def _every(
    connection: Lister, method: str, key: str, limits: Limits, read: Callable[[bytes], _T | None]
) -> list[_T]:
    """All items over all pages; raises if a bound is passed or a cursor repeats."""
    before = connection.received
    found: list[_T] = []
    count = 0
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(limits.pages):
        page = await _asked(connection, cursor, method)
        if page is None:
            return found
        raw_items = _items_of(page, key)
        count += len(raw_items)
        if count > limits.catalog_items:
            raise _over(f"the number of {_noun(method)}", limits.catalog_items, "catalogItems")
        if connection.received - before > limits.catalog_bytes:
            raise _over("the size of a list", limits.catalog_bytes, "catalogBytes")
        found += [item async for item in _read_each(raw_items, key, read)]
        cursor = text_of(page.get("nextCursor"))
        if not cursor:
            return found
        if cursor in seen:
            raise ServerFailure(NotMcp(fault=NotMcpFault.CURSOR_REPEATS))
        seen.add(cursor)
    raise _over("the pages of a list", limits.pages, "pages")


def _items_of(page: RawObject, key: str) -> list[Bytes]:
    raw = page.get(key)
    try:
        if raw is None:
            raise BadJson("Field required")
        return items(raw)
    except BadJson as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=f"{key}: {exc}")) from exc


async def _read_each(raw_items: list[Bytes], key: str, read: Callable[[bytes], _T | None]) -> AsyncIterator[_T]:
    """Each item as a value, with turns for other tasks in between; one that cannot be read fails the list."""
    cost = 0
    for place, raw in enumerate(raw_items):
        cost += len(memoryview(raw)) + ITEM_COST
        if cost > COST_IN_A_ROW:
            cost = 0
            await asyncio.sleep(0)
        if len(memoryview(raw)) > ITEM_BYTES:
            raise ServerFailure(OverBound(bound=f"the size of one of its {key}", limit=ITEM_BYTES, setting=""))
        try:
            item = read(bytes(raw))
        except ValidationError as exc:
            detail = f"{key}.{place}.{first_error(exc)}"
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=detail)) from exc
        except BadJson as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=f"{key}.{place}: {exc}")) from exc
        if item is not None:
            yield item


ITEM_BYTES = 128 * 1024
"""How large the description of one item may be: no model reads a longer one, and it is parsed in one step."""

ITEM_COST, COST_IN_A_ROW = 1_000, 64_000
"""What an item costs beyond its bytes, and how much is read before other tasks get a turn."""


async def _asked(connection: Lister, cursor: str | None, method: str) -> RawObject | None:
    """One page; None if the server does not know the method."""
    try:
        return await connection.list_page(method, cursor)
    except MCPError as exc:
        if exc.code == METHOD_NOT_FOUND and cursor is None:
            return None
        raise ServerFailure(RpcError(method=method, code=exc.code, message=exc.message)) from exc
    except BadJson as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))) from exc


def _over(bound: str, limit: int, key: str) -> ServerFailure:
    return ServerFailure(OverBound(bound=bound, limit=limit, setting=f"holdfast.limits.{key}"))


def _noun(method: str) -> str:
    return method.removesuffix("/list").replace("/", " ")


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
