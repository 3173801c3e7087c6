"""List tools, prompts, resources and templates to the last page, within bounds (SEC-4).

A list comes page by page, and a server decides how many there are. So the pages, the items, the size of one item and
the bytes of all pages have bounds. A cursor that comes a second time fails the listing: it would never end by itself.
One item that cannot be read fails its whole list: half of a list would look like one with items removed. A list other
than that of the tools fails alone (LIFE-26).

A page whose bytes are those of the last listing is not read again (PERF-4): its digest is compared, and what was read
from it is used as the same objects. So ``Offers.equal`` compares identities. All servers are listed once a minute, and
almost never has anything changed.

Items are values, unlike results: the hub itself compares, shows and filters them. They lose the hub's own keys here
(SEC-21), and other spellings of the protocol's keys.
"""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.shared.inbound import X_MCP_HEADER_KEY, find_invalid_x_mcp_header, x_mcp_header_map
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import METHOD_NOT_FOUND
from pydantic import BaseModel, ValidationError

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
    without_own_keys,
)
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.raw_json import BadJson, Bytes, KeyNames, RawObject, items, loads, text_of
from holdfast.wire.request_form import first_error

if TYPE_CHECKING:
    from holdfast.wire.request_form import RequestForm

__all__ = [
    "Offer",
    "OfferKind",
    "Offers",
    "list_other_offers",
    "list_tool_offers",
    "read_template",
    "task_support",
    "without_task_support",
]

log = logging.getLogger(__name__)

OfferKind: TypeAlias = Literal["tools", "prompts", "resources", "templates"]

Offer: TypeAlias = tuple[str, Mapping[str, Any]]
"""One tool, prompt, resource or template: its name or URI, and its description as the server sent it."""

HeaderMap: TypeAlias = Mapping[tuple[str, ...], str]
"""The arguments of a tool that are sent as headers too."""

ReadOffer: TypeAlias = tuple[str, Mapping[str, Any], HeaderMap | None]
"""An offer as it was read, and the headers of a tool's arguments if it names some."""


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of a list: what was read from it, and the digest of the bytes of its list."""

    digest: bytes
    count: int
    """How many items the server sent; some of them may be left out of ``items``."""
    items: tuple[ReadOffer, ...]


class Offers(dict[OfferKind, "tuple[Offer, ...]"]):
    """Everything that a server offers, by kind, and the kinds whose list failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[OfferKind, Evidence] = {}
        self.header_maps: Mapping[str, HeaderMap] = {}
        """By tool, the headers of its arguments."""
        self.pages: dict[OfferKind, list[ListedPage]] = {}
        """What was read, page by page: the next listing reads only those that changed."""

    def equal(self, last: Offers) -> bool:
        """Whether the server sent the same bytes as the last time. A list that failed says nothing."""
        kinds = self.pages.keys()
        return not self.failures and kinds == last.pages.keys() and all(self.equal_in(kind, last) for kind in kinds)

    def equal_in(self, kind: OfferKind, last: Offers) -> bool:
        """The same for one list."""
        now, before = self.pages[kind], last.pages.get(kind)
        return before is not None and len(now) == len(before) and all(map(operator.is_, now, before))


async def list_tool_offers(connection: RequestForm, last: Offers | None = None) -> Offers:
    """The tools, as the first part of what a server offers; ``last`` is what it offered before.

    A server that does not know ``tools/list`` has none. Tools whose headers are invalid are left out: a client of the
    modern era must drop them.
    """
    offers = Offers()
    read = partial(_read_tool, connection)
    pages = await _every(connection, "tools/list", "tools", read, _known(last, "tools"))
    offers.pages["tools"] = pages
    if last is not None and offers.equal_in("tools", last):
        offers["tools"], offers.header_maps = last["tools"], last.header_maps
    else:
        offers["tools"] = tuple([(name, raw) for page in pages for name, raw, _ in page.items])
        offers.header_maps = {name: used for page in pages for name, _, used in page.items if used is not None}
    connection.mirrored(offers.header_maps)
    return offers


def _known(last: Offers | None, kind: OfferKind) -> Sequence[ListedPage]:
    return last.pages.get(kind, ()) if last is not None else ()


async def list_other_offers(
    connection: RequestForm, offers: Offers, last: Offers | None = None, *, until: float
) -> None:
    """Add every other kind that the server's capabilities name.

    A list that fails takes no other with it (LIFE-26), unless the connection itself is lost.
    """
    can = connection.offers
    for kind, (method, key, name, capability, model) in _OTHERS.items():
        if getattr(can, capability) is None:
            continue
        within = max(min(OTHER_LIST_SECONDS, until - anyio.current_time()), 0.0)
        read = partial(_read_other, model, name)
        try:
            with anyio.fail_after(within):
                pages = await _every(connection, method, key, read, _known(last, kind))
        except TimeoutError:
            offers.failures[kind] = TimedOut(doing=f"the answer to {method}", after=round(within, 1))
        except ServerFailure as failure:
            if _connection_is_lost(failure.evidence):
                raise
            offers.failures[kind] = failure.evidence
        else:
            offers.pages[kind] = pages
            offers[kind] = tuple([(name, raw) for page in pages for name, raw, _ in page.items])


OTHER_LIST_SECONDS = 5.0
"""How long a list other than that of the tools may take. A server that is silent there is up without it."""


def _connection_is_lost(seen: Evidence) -> bool:
    """Whether no other list can be read on this connection either; a 404 says that the session expired."""
    return isinstance(seen, NetworkFailure | ProcessExit) or (isinstance(seen, HttpStatus) and seen.status == 404)


_OTHERS: Mapping[OfferKind, tuple[str, str, str, str, type[BaseModel]]] = {
    "prompts": ("prompts/list", "prompts", "name", "prompts", types.Prompt),
    "resources": ("resources/list", "resources", "uri", "resources", types.Resource),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate", "resources", types.ResourceTemplate),
}
"""Kind: the method that lists it, the keys of the list and of an item's name, the capability for it, its model."""


def _read_tool(connection: RequestForm, raw: bytes) -> ReadOffer | None:
    """A tool, its description, and the headers of its arguments; None if its headers are invalid."""
    value = _spelled(types.Tool, _value(raw))
    tool = types.Tool.model_validate(value, by_name=False)
    # Without the capability the annotation says nothing: such a tool is called plainly.
    shown = value if connection.runs_tasks else without_task_support(value)
    if not connection.modern or X_MCP_HEADER_KEY.encode() not in raw:
        return tool.name, shown, None
    if (reason := find_invalid_x_mcp_header(tool.input_schema)) is not None:
        log.warning("a tool is dropped, its %s is invalid: %s", X_MCP_HEADER_KEY, reason)
        return None
    return tool.name, shown, x_mcp_header_map(tool.input_schema)


DEEPEST_ITEM = 100
"""Levels of objects and lists in one item. All who walk through one do so by recursion, and Python ends that."""


def _value(raw: bytes) -> Any:
    """The value of an item; raises ``BadJson``."""
    value = loads(raw)
    if raw.count(b"{") + raw.count(b"[") <= DEEPEST_ITEM:
        return value
    level = [value]
    for _ in range(DEEPEST_ITEM):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [each for one in inner for each in one]
        if not level:
            return value
    raise BadJson("it is nested too deep")


_LISTED: tuple[type[BaseModel], ...] = (types.Tool, *(one[-1] for one in _OTHERS.values()))
_KEYS = {model: KeyNames(*(one.alias or name for name, one in model.model_fields.items())) for model in _LISTED}


def _spelled(model: type[BaseModel], value: Any) -> Any:
    """An item without the hub's keys in ``_meta``, and without other spellings of its own.

    Some clients read another spelling instead, and no review sees it.
    """
    if not isinstance(value, dict):
        return value
    value = without_own_keys(value)
    others = _KEYS[model].misspelled(value)
    return {key: one for key, one in value.items() if key not in others} if others else value


def _read_other(model: type[BaseModel], name: str, raw: bytes) -> tuple[str, Mapping[str, Any], None]:
    value: Mapping[str, Any] = _spelled(model, _value(raw))
    model.model_validate(value, by_name=False)
    return str(value[name]), value, None


async def _every(
    connection: RequestForm,
    method: str,
    key: str,
    read: Callable[[bytes], ReadOffer | None],
    known: Sequence[ListedPage],
) -> list[ListedPage]:
    """All pages; raises if a bound is passed or a cursor repeats. Pages that are known by their bytes are not read."""
    rpc = connection.wire.rpc
    limits = rpc.limits
    before = rpc.received
    pages: list[ListedPage] = []
    count = 0
    seen: set[str] = set()
    cursor: str | None = None
    for place in range(limits.pages):
        answer = await _asked(connection, cursor, method)
        if answer is None:
            return pages
        raw = answer.get(key)
        digest = await _digest(raw)
        page = known[place] if place < len(known) and known[place].digest == digest else None
        raw_items = _items_of(raw, key) if page is None else []
        count += page.count if page is not None else len(raw_items)
        if count > limits.catalog_items:
            noun = method.removesuffix("/list").replace("/", " ")
            raise _over(f"the number of {noun}", limits.catalog_items, "catalogItems")
        # All bytes count that came meanwhile, also those beside the list.
        if rpc.received - before > limits.catalog_bytes:
            raise _over("the size of a list", limits.catalog_bytes, "catalogBytes")
        if page is None:
            items_read = tuple([item async for item in _read_each(raw_items, key, read)])
            page = ListedPage(digest, len(raw_items), items_read)
        pages.append(page)
        cursor = text_of(answer.get("nextCursor"))
        if not cursor:
            return pages
        if cursor in seen:
            raise ServerFailure(NotMcp(fault=NotMcpFault.CURSOR_REPEATS))
        seen.add(cursor)
    raise _over("the pages of a list", limits.pages, "pages")


HASHED_BYTES = 1 << 20
"""How much of a list is hashed in one piece: about a millisecond."""


async def _digest(raw: Bytes | None) -> bytes:
    """What stands for the bytes of a list, so that they need not be kept."""
    data, digest, turns = memoryview(raw or b""), hashlib.blake2b(digest_size=16), Turns()
    for start in range(0, len(data), HASHED_BYTES):
        digest.update(data[start : start + HASHED_BYTES])
        await turns.offer()
    return digest.digest()


def _items_of(raw: Bytes | None, key: str) -> list[Bytes]:
    try:
        if raw is None:
            raise BadJson("Field required")
        return items(raw)
    except BadJson as exc:
        raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=f"{key}: {exc}")) from exc


async def _read_each(
    raw_items: list[Bytes], key: str, read: Callable[[bytes], ReadOffer | None]
) -> AsyncIterator[ReadOffer]:
    """Each item as a value, with turns for other tasks in between; one that cannot be read fails the list."""
    turns = Turns()
    for place, raw in enumerate(raw_items):
        await turns.offer()
        if len(raw) > ITEM_BYTES:
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


async def _asked(connection: RequestForm, cursor: str | None, method: str) -> RawObject | None:
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


def task_support(raw: Mapping[str, Any]) -> str:
    """Whether a listed tool runs as a task: ``required``, ``optional`` or ``forbidden``."""
    execution = raw.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, Mapping) else None
    return support if support in ("required", "optional") else "forbidden"


def without_task_support(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same tool as a plain one; one that never was a task stays as it is."""
    if task_support(raw) == "forbidden":
        return raw
    rest = {key: value for key, value in raw["execution"].items() if key != "taskSupport"}
    plain = {key: value for key, value in raw.items() if key != "execution"}
    return {**plain, "execution": rest} if rest else plain


@lru_cache(maxsize=512)
def read_template(text: str) -> UriTemplate | None:
    """The template of resources (RFC 6570) that a listed text is; None if it is none.

    Reading takes 20 µs and more, so the latest are kept.
    """
    try:
        return UriTemplate.parse(text)
    except InvalidUriTemplate:
        return None
