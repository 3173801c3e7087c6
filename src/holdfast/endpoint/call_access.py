"""What is not there for a caller (SEC-14): the answer to a name that her rules hide.

The view of a caller (``View.seen_by``) leaves out what she may not see, so all of it is said by "unknown", in the words
for a name that no server has. A request of something that is there is judged in ``call_gate``.
"""

from __future__ import annotations

from mcp import MCPError

from holdfast.core import Kind, NameKey, Unknown
from holdfast.endpoint.clients import Call
from holdfast.endpoint.instructions import unknown_name
from holdfast.endpoint.view import View
from holdfast.hub import access_item

__all__ = ["has_all", "hidden_or_unknown"]


def has_all(view: View) -> bool:
    """Whether nothing of the endpoint's one server is limited for those who see this view."""
    if view.grants is None or view.server is None:
        return view.grants is None
    spec = view.hub.config.servers.get(view.server)
    return view.grants.has_all_of(spec.plain_name if spec is not None else view.server)


def hidden_or_unknown(call: Call, view: View, kind: Kind, found: Unknown) -> MCPError:
    """The error for a name that is not there for the caller. The audit learns of the rule that hides it."""
    grants = call.view.grants
    there = view.find(kind, found.name) if grants is not None else None
    if grants is not None and isinstance(there, NameKey):
        call.server, call.hidden_by = there.server, grants.hidden_by(access_item(view.hub.registry, there))
    return unknown_name(kind, found, modern=call.client.modern)
