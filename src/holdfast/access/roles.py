"""What a principal may do with the control API and the status page: read, operate, approve.

The mcp.json gives roles to principals, groups and scopes (``access.roles``). The principals are those that call tools,
found in the same place; the control token has every role. A role is looked up for each request, so a change of the file
counts at once.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from holdfast.access.principals import Principal
from holdfast.config import RoleHolders, RoleSettings

__all__ = ["ALL_ROLES", "Role", "roles_of"]

Role: TypeAlias = Literal["read", "operate", "approve"]

ALL_ROLES: Final[frozenset[Role]] = frozenset({"read", "operate", "approve"})


def roles_of(principal: Principal, settings: RoleSettings) -> frozenset[Role]:
    """The roles of a principal. Who may operate or approve may also read: both act on what they see."""
    given: set[Role] = set()
    if _holds(principal, settings.read):
        given.add("read")
    if _holds(principal, settings.operate):
        given |= {"read", "operate"}
    if _holds(principal, settings.approve):
        given |= {"read", "approve"}
    return frozenset(given)


def _holds(principal: Principal, holders: RoleHolders) -> bool:
    return (
        principal.name in holders.principals
        or not principal.groups.isdisjoint(holders.groups)
        or not principal.scopes.isdisjoint(holders.scopes)
    )
