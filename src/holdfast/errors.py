"""Every error that Holdfast raises, grouped by who can correct it.

::

    HoldfastError                      has a .message and a .hint (what to do next); its text is both
    ├── ConfigError                    the configuration is wrong (yours to correct); .problems
    │   ├── ConfigNotFound             no configuration was found; .searched
    │   └── UntrustedConfig            a found project file that the user has not trusted yet; .file .data
    ├── UsageError                     the command was called with wrong arguments
    ├── UnknownServer                  no server of that name is configured
    ├── UnknownTool                    the server has no tool of that name
    ├── LoginFailed                    logging in to a server failed; an earlier login stays valid
    ├── HubNotOpen                     the hub was used before `async with`
    ├── NoHub                          no running hub was found
    ├── HubRefused                     a running hub refused the request; .status
    ├── NotAnswered                    a call of a known tool, prompt or resource has no result
    │   ├── ToolHeld                   the tool changed since it was first seen, and is held
    │   ├── CallForbidden              a rule of the hub does not let this caller make this call; .rule
    │   ├── NotAudited                 the call was not made: the audit is required and cannot be written
    │   ├── NotApproved                the call was not made: a person has to approve it, and did not
    │   ├── NotAuthorized              the call was not made: the service that decides could not be asked
    │   ├── ServerUnavailable          the hub did not send the call; .server_id .state .status .reason .retry_in
    │   │   ├── ServerDisabled         it is disabled
    │   │   ├── ServerDenied           loading it was denied
    │   │   ├── ServerPermanentlyFailed  it is parked; a person may be needed
    │   │   ├── BreakerOpen            it failed too often just now
    │   │   ├── ServerNotReady         it did not come up while the call waited
    │   │   ├── ServerBusy             too many calls are under way already
    │   │   └── HubClosed              the hub is closed, or the server is no longer configured
    │   └── CallFailed                 the call did not complete; a ServerFailure too
    │       ├── CallDenied             this call was denied
    │       └── ConnectionClosed       the connection died during the call; .uncertain
    └── ServerFailure                  the server, or the network path to it; .evidence
        ├── LoadFailed                 it could not be connected to or listed
        └── CallFailed                 as above

No message holds a secret: the code that builds it masks secrets first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.core import command_line, sentence, to_milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.core import Evidence, FailureStatus

__all__ = [
    "BreakerOpen",
    "CallDenied",
    "CallFailed",
    "CallForbidden",
    "ConfigError",
    "ConfigNotFound",
    "ConnectionClosed",
    "HoldfastError",
    "HubClosed",
    "HubNotOpen",
    "HubRefused",
    "LoadFailed",
    "LoginFailed",
    "NoHub",
    "NotAnswered",
    "NotApproved",
    "NotAudited",
    "NotAuthorized",
    "Problem",
    "ServerBusy",
    "ServerDenied",
    "ServerDisabled",
    "ServerFailure",
    "ServerNotReady",
    "ServerPermanentlyFailed",
    "ServerUnavailable",
    "ToolHeld",
    "UnknownServer",
    "UnknownTool",
    "UntrustedConfig",
    "UsageError",
    "explain",
]


class HoldfastError(Exception):
    """The root of the tree: a message for people, and a hint that says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message, and then the hint: a program that prints or logs the error loses neither."""
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem in a configuration, with its place.

    ``line`` and ``column`` count from 1; both are 0 where there is no text
    (a mapping that a program passed in).
    """

    message: str
    hint: str = ""
    file: Path | None = None
    line: int = 0
    column: int = 0
    path: str = ""
    variable: str = ""
    """The environment variable that is not set, if that is the problem."""
    keys: tuple[str | int, ...] = ()
    """The path inside the configuration, step by step."""
    rename: str = ""
    """The known key that an unknown key probably stands for."""

    @property
    def place(self) -> str:
        """``mcp.json:12:7``, or the path inside the mapping, or nothing."""
        if self.file is None:
            return self.path
        return f"{self.file}:{self.line}:{self.column}" if self.line else str(self.file)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class ConfigError(HoldfastError):
    """The configuration as a whole cannot be used; every problem found is listed."""

    def __init__(self, problems: Sequence[Problem], *, hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(str(problem) for problem in self.problems),
            hint=hint or next((p.hint for p in self.problems if p.hint), ""),
        )


class ConfigNotFound(ConfigError):
    """No configuration file was found in any of the usual places."""

    def __init__(self, searched: Sequence[Path]) -> None:
        self.searched = tuple(searched)
        super().__init__(
            [Problem(message="no configuration file was found")],
            hint="looked at: " + ", ".join(str(path) for path in self.searched),
        )


class UntrustedConfig(ConfigError):
    """The search found a project's own file whose content the user has not trusted yet. Nothing in it was used."""

    def __init__(self, file: Path, data: bytes) -> None:
        self.file = file
        self.data = data
        message = "this project file was found, and you have not trusted its content"
        hint = f"look at it, then run `{command_line('trust', str(file))}`; or name it with --config"
        super().__init__([Problem(message=message, hint=hint, file=file)])


class UsageError(HoldfastError):
    """A command was called with arguments that cannot be understood."""


class UnknownServer(HoldfastError):
    """The configuration has no server of that name."""

    @classmethod
    def among(cls, name: str, known: Iterable[str]) -> Self:
        """The error of every command and call for a name that is not one of ``known``."""
        from holdfast.core import near  # noqa: PLC0415 - slow to import, and every client that joins imports this file

        hint = near(name, sorted(known), "there are no servers")
        return cls(f"no server named `{name}` is configured", hint=hint)


class UnknownTool(HoldfastError):
    """The server answered, and has no tool of that name."""


class HubNotOpen(HoldfastError):
    """The hub was used before it was entered with ``async with``."""


class NoHub(HoldfastError):
    """There is no running hub, or it does not answer."""


class HubRefused(HoldfastError):
    """A running hub refused a request to its control API."""

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """The HTTP status of its answer."""


class LoginFailed(HoldfastError):
    """Logging in failed; an earlier login stays valid."""


class NotAnswered(HoldfastError):
    """A call has no result: it was not sent, or it did not complete. The base of every such error."""


class ToolHeld(NotAnswered):
    """The tool changed since it was first seen, and waits for an approval."""


class CallForbidden(NotAnswered):
    """The call was not made: the access rules of the hub do not let this caller make it."""

    def __init__(self, message: str, *, rule: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rule = rule
        """The rule that decided, as the configuration counts them: ``rules[2]``."""


class NotAudited(NotAnswered):
    """The call was not made, because no record of it could be written, and the operator requires one."""


class NotApproved(NotAnswered):
    """The call was not made: a person has to approve it first, and refused or did not answer."""


class NotAuthorized(NotAnswered):
    """The call was not made: the service that decides about calls could not be asked."""


class ServerUnavailable(NotAnswered):
    """The hub did not send a call: a state of the hub, not a transport error. Nothing was done."""

    def __init__(
        self,
        message: str,
        *,
        server_id: str,
        state: str,
        reason: str = "",
        retry_in: float | None = None,
        hint: str = "",
        status: FailureStatus = "transient",
    ) -> None:
        super().__init__(message, hint=hint)
        self.server_id = server_id
        self.state = state
        self.status = status
        """The class of the server's failure; transient where it has none."""
        self.reason = reason
        self.retry_in = to_milliseconds(retry_in) if retry_in is not None else None
        """Seconds until a retry can help; None where waiting does not help."""


class ServerDisabled(ServerUnavailable):
    """The server is disabled."""


class ServerDenied(ServerUnavailable):
    """Loading the server was denied."""


class ServerPermanentlyFailed(ServerUnavailable):
    """The server is parked: the hub retries it, and a call may try it after the cooldown."""


class BreakerOpen(ServerUnavailable):
    """The server failed too often just now, or another call is trying it."""


class ServerNotReady(ServerUnavailable):
    """The server did not come up while the call waited."""


class ServerBusy(ServerUnavailable):
    """The limit of calls in flight and waiting is reached."""


class HubClosed(ServerUnavailable):
    """The hub is closed, or the server is no longer configured."""


class ServerFailure(HoldfastError):
    """A server, or the network path to it, failed; ``evidence`` is what was seen."""

    def __init__(self, evidence: Evidence, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or str(evidence), hint=hint)
        self.evidence = evidence


class LoadFailed(ServerFailure):
    """Connecting to a server, or listing what it offers, failed."""


class CallFailed(ServerFailure, NotAnswered):
    """One call to a server did not complete."""

    def __init__(self, evidence: Evidence, message: str = "", *, hint: str = "", uncertain: bool = False) -> None:
        super().__init__(evidence, message, hint=hint)
        self.uncertain = uncertain
        """Whether the server may have acted on the call, so that it must not be made again blindly."""


class CallDenied(CallFailed):
    """This call was denied; the server itself stays available."""


class ConnectionClosed(CallFailed):
    """The connection died during the call."""


def explain(error: HoldfastError) -> str:
    """One text for an error: what happened, why, and when to try again. Endpoints, integrations and commands use it."""
    if isinstance(error, ServerUnavailable):
        return f"{error.message.rstrip('.')}."  # its message has the words of the evidence and the time already
    return f"{error.message.rstrip('.')}. {sentence(error.hint)}" if error.hint else f"{error.message.rstrip('.')}."
