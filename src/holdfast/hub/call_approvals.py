"""Approval of calls: a rule says ``ask``, and a person decides about one call before it is made (SEC-19).

Theory of operation. A *question* is about one call: who calls, which tool of a server, the hash of the arguments,
and the version of the policy that asks. It has an id, an end, and at most one *verdict*. A call that needs one waits
for it here, or comes back for it: a client that gave up makes the same call again.

    opened ──decide──> decided ──take──> gone
       └──────── its time is over ────────┘

What must never happen:

- A verdict serves another call: ``take`` compares all that the question is bound to.
- A verdict is used twice: ``take`` removes the question, in one step of the event loop. Two equal calls at the same
  time need two verdicts.
- A verdict outlives the policy that asked: the version of the policy is a part of what it is bound to.
- A question is decided twice, or after its time.

More than one hub. A question belongs to the replica that opened it, its home, and only that one lets its verdict be
used. The others hear of it: any replica lists all questions and takes a verdict, which reaches the home through the
store within a second. The same call at another replica is sent on to the home (``elsewhere``). If the home is gone, or
the store does not answer, the call is asked about again: never more, and never less, than one verdict for one call.
Workers of one machine are replicas in this.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

import anyio

from holdfast.config import ApprovalSettings
from holdfast.errors import HoldfastError, NotApproved

__all__ = [
    "CallApprovals",
    "CallBinding",
    "CallQuestion",
    "CallVerdict",
    "QuestionSharing",
    "UnknownQuestion",
    "find_question",
]

MOST_QUESTIONS: Final = 1_000
"""Of one replica. A person cannot decide more, and each holds some of the arguments."""

MOST_OF_CALLER: Final = 50
"""Of one caller: she must not take the place of all others."""

LONGEST_REASON: Final = 300


class CallBinding(NamedTuple):
    """What a verdict is for. Nothing else may use it."""

    principal: str
    server: str
    tool: str
    argument_hash: str
    policy: str
    rule: str
    """The rule that asks. With another token of the same caller another rule may ask another person."""


class CallVerdict(NamedTuple):
    """What a person decided."""

    approved: bool
    by: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CallQuestion:
    """One call that waits for a person."""

    id: str
    binding: CallBinding
    approver: Literal["caller", "operator"]
    rule: str
    program: str
    arguments: str
    """For the person: without secrets, and cut."""
    asked: float
    expires: float
    """Both in seconds since the epoch."""
    home: str
    """The replica that opened it; empty for a hub that is alone."""


class QuestionSharing(Protocol):
    """Tells other replicas about questions. Nothing here waits for the store."""

    @property
    def home(self) -> str:
        """This replica's name in ids."""

    def note_question(self, question: str, value: Mapping[str, Any] | None, until: float) -> None:
        """A question was opened; None: it is over."""

    def note_verdict(self, question: str, value: Mapping[str, Any], until: float) -> None:
        """A question of another replica was decided here."""


class CallApprovals:
    """The questions of one hub, and those that it knows of others."""

    def __init__(
        self,
        settings: Callable[[], ApprovalSettings],
        sharing: QuestionSharing | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._sharing = sharing if sharing is not None else _AloneHub()
        self._wall = wall
        self._home = self._sharing.home
        self._own: dict[str, CallQuestion] = {}
        self._by_binding: dict[CallBinding, str] = {}
        self._verdicts: dict[str, CallVerdict] = {}
        self._elsewhere: dict[str, CallQuestion] = {}
        self._changed = anyio.Event()
        self._closed = False
        self._watchers: list[Callable[[], None]] = []

    # For the call.

    def open(
        self,
        binding: CallBinding,
        *,
        approver: Literal["caller", "operator"],
        rule: str,
        program: str,
        arguments: str,
    ) -> CallQuestion:
        """The question about a call: a new one, or the one that is open already."""
        self._sweep()
        known = self._own.get(self._by_binding.get(binding, ""))
        if known is not None:
            return known
        of_caller = sum(one.binding.principal == binding.principal for one in self._own.values())
        if len(self._own) >= MOST_QUESTIONS or of_caller >= MOST_OF_CALLER:
            raise NotApproved(
                "not called: it needs an approval, and too many calls wait for one",
                hint="Try again when some of them are decided.",
            )
        now = self._wall()
        made = CallQuestion(
            id=f"{self._home}{'-' if self._home else ''}{secrets.token_hex(5)}",
            binding=binding,
            approver=approver,
            rule=rule,
            program=program,
            arguments=arguments,
            asked=now,
            expires=now + self._settings().lifetime,
            home=self._home,
        )
        self._own[made.id] = made
        self._by_binding[binding] = made.id
        self._sharing.note_question(made.id, asdict(made), made.expires)
        self._wake()
        return made

    def take(self, binding: CallBinding) -> CallVerdict | None:
        """The verdict about a call, which is used up by that; None if there is none."""
        self._sweep()
        question = self._by_binding.get(binding, "")
        if question not in self._verdicts:
            return None
        verdict = self._verdicts[question]
        self._remove(question)
        self._wake()
        return verdict

    async def wait(self, binding: CallBinding, within: float) -> CallVerdict | None:
        """Wait for a verdict and use it up; None if none came in time."""
        with anyio.move_on_after(within):
            while (verdict := self.take(binding)) is None:
                if self._closed or binding not in self._by_binding:
                    return None  # the hub ends, an equal call used the verdict, or the time of the question is over
                await self._changed.wait()
            return verdict
        return None

    def elsewhere(self, binding: CallBinding) -> str:
        """The home of an open question about this call, if it is another replica; else empty."""
        self._sweep()
        found = (one.home for one in self._elsewhere.values() if one.binding == binding)
        return next(found, "")

    # For the person.

    def waiting(self) -> list[CallQuestion]:
        """The questions without a verdict, of all replicas, the oldest first."""
        self._sweep()
        own = [one for one in self._own.values() if one.id not in self._verdicts]
        return sorted([*own, *self._elsewhere.values()], key=lambda one: one.asked)

    def decide(self, question: str, verdict: CallVerdict) -> CallQuestion:
        """Decide about a call; raises ``UnknownQuestion``."""
        found = find_question(self, question)
        verdict = verdict._replace(reason=verdict.reason[:LONGEST_REASON])
        # It stays open, with its verdict, until the call takes it: the client may come back for it.
        if question in self._own:
            self._verdicts[question] = verdict
        else:
            del self._elsewhere[question]
            self._sharing.note_verdict(question, verdict._asdict(), found.expires)
        self._wake()
        return found

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this when a question was opened, was decided, or is over; it must not wait."""
        self._watchers.append(changed)

    # For the replicas.

    def follow_question(self, question: str, value: Mapping[str, Any] | None) -> None:
        """Another replica opened a question, or it is over there."""
        known, made = self._elsewhere.pop(question, None), None
        if value is not None and question not in self._own:
            with suppress(KeyError, TypeError):  # it is of another version
                read = {name: value[name] for name in CallQuestion.__dataclass_fields__}
                made = CallQuestion(**{**read, "binding": CallBinding(*read["binding"])})
                self._elsewhere[question] = made
        if made != known:
            self._wake()

    def follow_verdict(self, question: str, value: Mapping[str, Any]) -> None:
        """A question was decided at another replica."""
        self._sweep()
        # The first verdict counts: two people may decide at two replicas within the same second.
        if question in self._own and question not in self._verdicts:
            approved = value.get("approved") is True
            verdict = CallVerdict(approved, str(value.get("by", "")), str(value.get("reason", ""))[:LONGEST_REASON])
            self._verdicts[question] = verdict
            self._wake()
        self._elsewhere.pop(question, None)

    # Their ends.

    def close(self) -> None:
        """The hub ends: calls that wait are told so."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        for changed in self._watchers:
            changed()

    def _remove(self, question: str) -> None:
        one = self._own.pop(question)
        del self._by_binding[one.binding]
        self._verdicts.pop(question, None)
        self._sharing.note_question(question, None, one.expires)

    def _sweep(self) -> None:
        """Remove the questions whose time is over. It is the first step of each operation."""
        now = self._wall()
        over = [one.id for one in (*self._own.values(), *self._elsewhere.values()) if one.expires <= now]
        for question in over:
            if self._elsewhere.pop(question, None) is None:
                self._remove(question)
        if over:
            self._wake()

    def __repr__(self) -> str:
        return f"<CallApprovals {len(self._own)} here, {len(self._elsewhere)} elsewhere, {len(self._verdicts)} decided>"


def find_question(questions: CallApprovals, question: str) -> CallQuestion:
    """A question that waits; raises ``UnknownQuestion``."""
    found = next((one for one in questions.waiting() if one.id == question), None)
    if found is None:
        raise UnknownQuestion(
            f"no call with the id `{question[:80]}` waits for an approval",
            hint="it was decided already, its time is over, or the id is another one",
        )
    return found


class _AloneHub:
    """``QuestionSharing`` of a hub that is alone."""

    home = ""

    def note_question(self, question: str, value: Mapping[str, Any] | None, until: float) -> None:
        """Tell no one."""

    def note_verdict(self, question: str, value: Mapping[str, Any], until: float) -> None:
        """Tell no one."""


class UnknownQuestion(HoldfastError):
    """No call with that id waits for an approval."""
