"""What names a slot: the server, and for whom it runs.

A server runs once for all (``shared``), once for each client, or once for each project folder. A slot of a user is the
same with another owner: nothing else has to know which of them it is.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, TypeAlias

__all__ = ["SlotKey", "SlotScope"]

SlotScope: TypeAlias = Literal["shared", "client", "folder", "user"]


@dataclass(frozen=True)
class SlotKey:
    """The name of one slot."""

    server: str
    """The name of the server in the configuration."""
    scope: SlotScope = "shared"
    owner: Hashable = None
    """The client, the path of the folder, or the principal; None for a shared one."""

    @property
    def id(self) -> str:
        """The name that people see, and that the registry and the state file use."""
        if self.scope == "shared":
            return self.server
        owner = str(self.owner)
        mark = blake2b(owner.encode("utf-8", "surrogateescape"), digest_size=2).hexdigest()
        return f"{self.server}@{os.path.basename(owner) or 'root'}-{mark}"  # noqa: PTH119 - a text
