"""The commands that texts propose, as a person types them on this machine.

Every hint gets its command here: those of the command line, of calls, of the status page, of ``holdfast_status`` and of
doctor. So a command that is copied from any of them works. Two facts decide how it is typed: the name or path of the
program, and the file that is meant where it is not the one that the command would find. Both are facts of the process.
The command line states them once, when a command starts (``typed_as``). A program that uses the library states nothing,
and reads ``holdfast …``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["Invocation", "command_line", "invocation", "typed_as"]


class Invocation(NamedTuple):
    """How a person starts Holdfast here."""

    program: str = "holdfast"
    """Its name or path, quoted for a shell."""
    config: str = ""
    """The file to name; empty where a command finds it without."""


_TAKES_CONFIG = frozenset(
    {
        *(
            "add",
            "approve",
            "auth",
            "call",
            "config",
            "disable",
            "doctor",
            "enable",
            "gateway",
            "list",
            "login",
            "logout",
        ),
        *("logs", "reconnect", "remove", "serve", "status", "tools"),
    }
)
"""The commands with ``--config``. That of ``import`` means the file to write."""

_NEEDS_NO_CONFIG = frozenset({("doctor", "explain"), ("doctor", "--list-checks"), ("serve", "--demo")})

_current = Invocation()


def invocation() -> Invocation:
    """How a person starts Holdfast here."""
    return _current


@contextmanager
def typed_as(now: Invocation) -> Iterator[None]:
    """Let all commands be typed so, for the length of the block."""
    global _current  # noqa: PLW0603 - a fact of the process, as its arguments are; see above
    before, _current = _current, now
    try:
        yield
    finally:
        _current = before


def command_line(*words: str, server: str = "", options: tuple[str, ...] = ()) -> str:
    """A command of ours, quoted for a shell: ``command_line("login", server="github")``.

    A server whose name begins with a dash must not be read as an option.
    """
    config = _current.config if words and words[0] in _TAKES_CONFIG and words[:2] not in _NEEDS_NO_CONFIG else ""
    named = [*options, *(("--config", config) if config and not {"--config", "--file"} & {*words} else ())]
    last = [*named, "--", server] if server.startswith("-") else [*([server] if server else []), *named]
    return " ".join(filter(None, (_current.program, shlex.join([*words, *last]))))
