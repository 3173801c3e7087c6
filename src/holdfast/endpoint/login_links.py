"""Links by which users log in to servers that are per user (AUTH-7).

A link leads to a page of this hub. It names the server, the user and the program that needs the login, sealed: it says
nothing to anyone else, and it opens nothing by itself. The page first finds out who sits at the browser, and goes on
only if that is the user of the link. So a link that reaches another person is of no use: neither can she log in for
the user, nor is her own login given to the user.

A link is valid for a time, and any worker and any replica with the hub's keys reads it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlencode

from holdfast.access import LOCAL
from holdfast.keys import KeyRing

__all__ = ["CONNECT_PATH", "LoginLinks", "LoginTicket"]

CONNECT_PATH: Final = "/connect"

LINK_SECONDS: Final = 900.0
"""How long a link is valid: a person may have to find her second factor."""

LONGEST_TICKET: Final = 2_000
"""Characters."""

_PURPOSE: Final = "login link"


@dataclass(frozen=True, kw_only=True)
class LoginTicket:
    """What a link says."""

    principal: str
    server: str
    program: str
    """What the client calls itself that needs the login; empty if it does not say."""
    until: float


class LoginLinks:
    """Makes and reads links. ``base`` is the address of the hub that browsers use.

    ``by_issuer`` says whether people can sign in at the issuer of the hub: only so a browser can be known for the
    subject of a JWT.
    """

    def __init__(
        self, base: str, ring: Callable[[], KeyRing], *, by_issuer: bool, wall: Callable[[], float] = time.time
    ) -> None:
        self.base = base.rstrip("/")
        self.ring = ring
        self._by_issuer = by_issuer
        self.wall = wall

    def link(self, principal: str, server: str, program: str) -> str:
        """A link for a user; empty for one whom the hub cannot recognise at a browser."""
        if not self._is_recognised(principal):
            return ""
        ticket = LoginTicket(principal=principal, server=server, program=program, until=self.wall() + LINK_SECONDS)
        sealed = self.ring().seal(json.dumps(asdict(ticket)).encode(), purpose=_PURPOSE)
        written = base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        return f"{self.base}{CONNECT_PATH}?{urlencode({'ticket': written})}"

    def read(self, written: str) -> LoginTicket | None:
        """What a link says; None if this hub did not make it, or it expired."""
        if not written or len(written) > LONGEST_TICKET:
            return None
        try:
            sealed = base64.urlsafe_b64decode(written + "=" * (-len(written) % 4))
        except ValueError:
            return None
        content = self.ring().open(sealed, purpose=_PURPOSE)
        ticket = LoginTicket(**json.loads(content)) if content is not None else None
        return ticket if ticket is not None and ticket.until > self.wall() else None

    def _is_recognised(self, principal: str) -> bool:
        """Whether a browser can be known for this user: by the gateway, by a token typed in, or by the issuer."""
        if principal == LOCAL.name:
            return False
        source, mark, _ = principal.partition("#")  # only subjects of JWTs and users of a gateway have the mark
        return not mark or source == "gateway" or self._by_issuer

    def __repr__(self) -> str:
        return f"<LoginLinks to {self.base}>"
