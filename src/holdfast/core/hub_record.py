"""What one hub tells another about a server: the record that crosses between them, and the health that it stands for.

A hub is an MCP server, so a hub can be behind a hub. The outer hub is then connected to a program that always answers,
while the server that its clients mean may be down. The record closes this gap: with it, the health of the server
outside *is* the health inside, with the same state, the same words and the same next try (FLEET-6).

What must never happen: a peer that is not proven puts words into the hub's mouth. Anyone can answer at a URL and call
itself a hub. So its states and times are taken, because they only describe its own server, but its texts are quoted
(MSG-11), and its hint, which tells a person what to type, is dropped. A peer of the fleet's key, or of this user on a
Unix socket, is this program: its texts were made, masked and quoted by the same code.

What comes in is data of foreign shape. A record that cannot be read counts as no record: the outer hub then says what
it sees by itself, which is that the hub answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import FailureStatus
from holdfast.core.redact import plain, quoted

__all__ = [
    "HUB_CAPABILITY",
    "HUB_VERSION",
    "LOOP_HINT",
    "LOOP_REASON",
    "MOST_HUBS",
    "STATUS_URI",
    "ServerRecord",
    "hub_warns",
    "read_records",
    "speaks_hub",
    "told_number",
]

HUB_CAPABILITY: Final = "holdfast"
"""The name under which a hub announces itself, in the experimental capabilities of a server and of a client."""

HUB_VERSION: Final = 1
"""The version of the records. A reader ignores fields that it does not know, and records of a version below 1."""

STATUS_URI: Final = "holdfast://status"
"""The resource with the records of all servers of an endpoint."""

LOOP_REASON: Final = "the definitions of hubs form a loop: what this hub asks another one for comes back to it"
LOOP_HINT: Final = "let one of the hubs run the server itself"

MOST_HUBS: Final = 8
"""How many hubs a request, or a record, may pass. More are a mistake, also where they form no loop."""

LONGEST_REASON: Final = 2_000
LONGEST_SECONDS: Final = 10 * 365 * 86_400.0
MOST_RECORDS: Final = 10_000


def speaks_hub(capabilities: Mapping[str, Any]) -> bool:
    """Whether these capabilities, of a client or of a server, are those of a hub."""
    version = _announced(capabilities).get("version")
    return isinstance(version, int) and version >= HUB_VERSION


def hub_warns(capabilities: Mapping[str, Any]) -> bool:
    """Whether the instructions beside these capabilities are a warning of the hub, not the words of its server."""
    return _announced(capabilities).get("warns") is True


def _announced(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    experimental = capabilities.get("experimental")
    announced = experimental.get(HUB_CAPABILITY) if isinstance(experimental, Mapping) else None
    return announced if isinstance(announced, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class ServerRecord:
    """The health of one server at one moment, as a hub tells it."""

    health: Health
    kind: str = ""
    """What was seen when it failed, by the name of the evidence: ``process_exit``, ``http_status``."""
    hint: str = ""
    """What would end the failure."""
    hubs: tuple[str, ...] = ()
    """The ids of the hubs through which the one that tells it has the server, itself first; empty if it runs it."""

    @property
    def is_available(self) -> bool:
        """Whether there is nothing to tell: calls pass, or start it."""
        return self.health.status in ("available", "idle")

    def written(self) -> dict[str, Any]:
        """The record as JSON fields. Times are seconds from now: two hubs need no common clock."""
        health = self.health
        return {
            "lifecycle": health.state.value,
            "breaker": health.breaker.value,
            "class": health.evidence,
            "evidence": self.kind,
            "reason": health.reason,
            "hint": self.hint,
            "attempts": health.attempts,
            "failures": health.failures,
            "lost": health.lost,
            "spent": health.spent,
            "unconfirmed": health.unconfirmed,
            "downFor": health.down_for,
            "nextDialIn": health.retry_in,
            "callAsksIn": health.call_asks_in,
            "breakerRetryIn": health.breaker_retry_in,
            "hubs": list(self.hubs),
        }

    def seen_by(self, hub: str) -> ServerRecord:
        """The record as this hub takes it: one that came through the hub itself is no news but a loop.

        Two hubs that have each other as the definition of one server would show each other's state for ever.
        """
        if hub not in self.hubs:
            return self
        failed = replace(
            self.health, state=State.PERMANENTLY_FAILED, reason=LOOP_REASON, evidence="permanent", retry_in=None
        )
        return ServerRecord(health=failed, kind="bad_config", hint=LOOP_HINT)

    def seen_from(self, outer: Health, *, age: float) -> Health:
        """The health outside, ``age`` seconds after the record came. Connection and calls stay those outside."""
        health = self.health
        return replace(
            health,
            server=outer.server,
            generation=outer.generation,
            calls=outer.calls,
            retry_in=_aged(health.retry_in, -age),
            call_asks_in=_aged(health.call_asks_in, -age),
            breaker_retry_in=_aged(health.breaker_retry_in, -age),
            down_for=_aged(health.down_for, age),
        )


def read_records(value: object, *, proven: bool) -> dict[str, ServerRecord]:
    """The records in what a hub answered, by the ids that it uses; those that cannot be read are left out."""
    if not isinstance(value, Mapping) or (told_number(value.get("version")) or 0) < HUB_VERSION:
        return {}
    servers = value.get("servers")
    if not isinstance(servers, Mapping) or len(servers) > MOST_RECORDS:
        return {}
    found = {str(name): _read(name, record, proven=proven) for name, record in servers.items()}
    return {name: record for name, record in found.items() if record is not None}


def _read(name: object, record: object, *, proven: bool) -> ServerRecord | None:
    if not isinstance(record, Mapping):
        return None
    try:
        state, breaker = State(record.get("lifecycle")), BreakerState(record.get("breaker"))
    except ValueError:
        return None
    evidence = record.get("class")
    health = Health(
        server=str(name),
        state=state,
        reason=_reason(record.get("reason"), proven=proven),
        generation=None,
        failures=_count(record.get("failures")),
        attempts=_count(record.get("attempts")),
        breaker=breaker,
        retry_in=told_number(record.get("nextDialIn")),
        evidence=evidence if evidence in get_args(FailureStatus) else None,
        lost=record.get("lost") is True,
        spent=record.get("spent") is True,
        down_for=told_number(record.get("downFor")),
        unconfirmed=record.get("unconfirmed") is True,
        call_asks_in=told_number(record.get("callAsksIn")),
        breaker_retry_in=told_number(record.get("breakerRetryIn")),
    )
    kind, hint, hubs = record.get("evidence"), record.get("hint"), record.get("hubs")
    return ServerRecord(
        health=health,
        kind=kind[:80] if isinstance(kind, str) and kind.isidentifier() else "",
        hint=_plain(hint) if proven and isinstance(hint, str) else "",
        hubs=tuple(str(one)[:80] for one in hubs[:MOST_HUBS]) if isinstance(hubs, list) else (),
    )


def _reason(value: object, *, proven: bool) -> str:
    if not isinstance(value, str):
        return ""
    return _plain(value) if proven else quoted(value, origin="it says")


def _plain(text: str) -> str:
    """A text of a proven hub, in one line and bounded all the same: a fault of that hub must not become ours."""
    return " ".join(plain(text[: 2 * LONGEST_REASON]).split())[:LONGEST_REASON]


def _count(value: object) -> int:
    return int(told_number(value) or 0)


def told_number(value: object) -> float | None:
    """A number that a time or a count can be; None for anything else."""
    # The last comparison also refuses NaN and infinity, which JSON parsers of Python accept: no timer takes them.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LONGEST_SECONDS:
        return None
    return float(value)


def _aged(seconds: float | None, by: float) -> float | None:
    return max(0.0, seconds + by) if seconds is not None else None
