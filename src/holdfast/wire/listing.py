"""What a server offers, read to the last page, within bounds (SEC-4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import METHOD_NOT_FOUND
from pydantic import ValidationError

from holdfast.config.spec import Limits
from holdfast.core.evidence import NotMcp, NotMcpFault, OverBound, RpcError
from holdfast.errors import ServerFailure

__all__ = ["ToolInfo", "list_tools"]


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


async def list_tools(session: ClientSession, limits: Limits, received: Callable[[], int]) -> tuple[ToolInfo, ...]:
    """Every tool, over all pages. A server that does not know the question has none.

    ``received`` tells how many bytes the server has sent so far.
    """
    before = received()
    tools: list[ToolInfo] = []
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(limits.pages):
        page = await _page(session, cursor)
        tools += map(_info, page.tools)
        if len(tools) > limits.catalog_items:
            raise _over("the number of tools", limits.catalog_items, "catalogItems")
        if received() - before > limits.catalog_bytes:
            raise _over("the size of a list", limits.catalog_bytes, "catalogBytes")
        cursor = page.next_cursor
        if not cursor:
            return tuple(tools)
        if cursor in seen:
            raise ServerFailure(NotMcp(fault=NotMcpFault.CURSOR_REPEATS))
        seen.add(cursor)
    raise _over("the pages of a list", limits.pages, "pages")


def _over(bound: str, limit: int, key: str) -> ServerFailure:
    return ServerFailure(OverBound(bound=bound, limit=limit, setting=f"holdfast.limits.{key}"))


async def _page(session: ClientSession, cursor: str | None) -> types.ListToolsResult:
    params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
    try:
        return await session.list_tools(params=params)
    except MCPError as exc:
        if exc.code == METHOD_NOT_FOUND and cursor is None:
            return _nothing()
        raise ServerFailure(RpcError(method="tools/list", code=exc.code, message=exc.message)) from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=detail)) from exc


def _nothing() -> types.ListToolsResult:
    return types.ListToolsResult(tools=[])


def _info(tool: types.Tool) -> ToolInfo:
    return ToolInfo(
        name=tool.name,
        title=tool.title,
        description=tool.description or "",
        input_schema=MappingProxyType(tool.input_schema),
        output_schema=MappingProxyType(tool.output_schema) if tool.output_schema is not None else None,
        annotations=_dumped(tool.annotations),
        meta=MappingProxyType(dict(tool.meta or {})),
    )


def _dumped(annotations: types.ToolAnnotations | None) -> Mapping[str, Any]:
    if annotations is None:
        return MappingProxyType({})
    return MappingProxyType(annotations.model_dump(by_alias=True, exclude_none=True))
