"""Large results at an endpoint: which ones are shortened, and which replica reads on (FIND-6).

The results themselves are in ``hub/kept_results``. Here is what an endpoint knows beside: its names, the caller's
protocol and principal, and the other replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.core import Kind, NameKey
from holdfast.endpoint.clients import Call, LivesElsewhere, RequestHomes
from holdfast.endpoint.view import ToolRoute, View
from holdfast.hub import READ_RESULT, RESULTS_URI, has_output_schema
from holdfast.wire import RawObject, via_in

__all__ = ["LargeResults", "keeps_results"]

LINKS_SINCE: Final = "2025-06-18"
"""The first version of the protocol in which a result may hold links to resources."""

RESULT_LOST: Final = "the result with this handle is kept by a replica that does not answer. Call the tool again."


def keeps_results(view: View) -> bool:
    """Whether large results are kept for the clients of an endpoint.

    The endpoint of one server has the server's own names. Where one of its tools is named ``read_result``, results go
    out whole: their clients could not read on.
    """
    if not view.hub.registry.config.settings.large_results.over:
        return False
    own = NameKey(Kind.TOOL, view.server, READ_RESULT) if view.server is not None and view.tools == "all" else None
    return own is None or own not in view.user.catalog.names


class LargeResults:
    """The large results of one endpoint."""

    def __init__(self, view: View, homes: RequestHomes | None) -> None:
        self._view = view
        self._kept = view.hub.kept_results
        self._homes = homes

    async def shortened(self, call: Call, route: ToolRoute, result: RawObject) -> RawObject:
        """A tool's result as its caller gets it: whole, or its beginning if it is large.

        A hub in front of this one gets every result whole: its clients cannot read on here, and it shortens results
        itself.
        """
        view, homes = self._view, self._homes
        if via_in(call.headers) or has_output_schema(view.user.catalog, route.key):
            return result
        return await self._kept.shortened(
            result,
            f"{route.key.server}/{route.key.original}",
            principal=call.bound_to,
            replica=homes.tag if homes is not None else "",
            links=call.client.modern or call.version >= LINKS_SINCE,
        )

    async def read_on(self, call: Call, values: Mapping[str, Any]) -> RawObject:
        """What ``read_result`` answers; raises ``LivesElsewhere`` if another replica has the result."""
        await self._check(values.get("handle"), call.bound_to)
        return await self._kept.read(values, call.bound_to)

    async def contents(self, call: Call, uri: str) -> RawObject | None:
        """The contents of the resource that a shortened result links to; None if there is no such result."""
        await self._check(uri.removeprefix(RESULTS_URI), call.bound_to)
        return await self._kept.contents(uri, call.bound_to)

    async def _check(self, handle: object, principal: str) -> None:
        """Raise ``LivesElsewhere`` if another replica keeps the result with this handle."""
        if self._homes is None or not isinstance(handle, str) or self._kept.knows(handle, principal):
            return
        tag, dot, _ = handle.partition(".")
        if dot and (there := await self._homes.replica_of(tag)) is not None:
            raise LivesElsewhere(there, RESULT_LOST)

    def __repr__(self) -> str:
        return f"<LargeResults of {self._view!r}>"
