"""What a check finds: a code, a message, and a remedy that a person can paste.

``doctor --json`` prints these models. A new field needs a default, and a renamed field needs a new version
of the report.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from holdfast.doctor.codes import CODES, Severity

__all__ = ["Edit", "Finding", "Remedy", "Repair", "ReportModel", "ask_for", "finding", "shell"]

Repair: TypeAlias = Literal["chmod", "set_aside"]
"""What ``--fix`` can repair."""


_REFERENCE = re.compile(r'"(?:Bearer )?\$\{env:\w+\}"')


class ReportModel(BaseModel):
    """The base of every part of a report: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Edit(ReportModel):
    """A value to write into the configuration."""

    place: str = Field(description="The position of the value, or of its server: file:line:column")
    key: str = Field(description="The key, from the top of the file: mcpServers.weather.url")
    keys: tuple[str, ...] = Field(description="The key inside its server, or inside `holdfast`, step by step")
    value: str = Field(description="What to write there, as JSON")


class Remedy(ReportModel):
    """What to do: a sentence, and commands and edits to paste."""

    text: str = Field(description="What to do, in a sentence")
    commands: tuple[str, ...] = Field(default=(), description="Shell commands to paste, in order")
    edits: tuple[Edit, ...] = Field(default=(), description="Values to write into the configuration")


class Finding(ReportModel):
    """One fault that a check found."""

    code: str = Field(description="Stable, HF-…; `holdfast doctor explain CODE` explains it")
    severity: Severity
    words: str = Field(description="The fault, in this case")
    detail: str = Field(default="", description="Lines to look at, such as the end of a server's stderr")
    remedy: Remedy
    repair: Repair | None = Field(default=None, description="What `--fix` does about it, if that is safe")
    target: str = Field(default="", description="The file that the repair changes")

    def rewritten(self, change: Callable[[str], str]) -> Finding:
        """The same finding with every text changed. It is used to mask secrets."""
        remedy = self.remedy
        return self.model_copy(
            update={
                "words": change(self.words),
                "detail": change(self.detail),
                "remedy": Remedy(
                    text=change(remedy.text),
                    commands=tuple(map(change, remedy.commands)),
                    edits=tuple(_rewritten(edit, change) for edit in remedy.edits),
                ),
            }
        )


def _rewritten(edit: Edit, change: Callable[[str], str]) -> Edit:
    """A reference to a variable stays as it is: it is not a secret, and ``Bearer`` before it may be part of one."""
    return edit if _REFERENCE.fullmatch(edit.value) else edit.model_copy(update={"value": change(edit.value)})


def finding(
    code: str,
    words: str,
    remedy: str,
    *commands: str,
    edits: tuple[Edit, ...] = (),
    detail: str = "",
    repair: Repair | None = None,
    target: str = "",
) -> Finding:
    """A finding of a known code; ``commands`` are shell commands to paste."""
    return Finding(
        code=code,
        severity=CODES[code].severity,
        words=words,
        detail=detail,
        remedy=Remedy(text=remedy, commands=commands, edits=edits),
        repair=repair,
        target=target,
    )


def ask_for(variable: str) -> str:
    """A command that reads a variable's value from the keyboard, so that it is not shown and not in the history."""
    return f"read -rs {variable} && export {variable}"


def shell(*words: str) -> str:
    """A command line of these words, quoted for a shell."""
    return shlex.join(words)
