"""What a check finds: a code, the words for this case, and a remedy that a person can paste.

These are also the shapes of ``doctor --json``: what is added is added with a default, and nothing is renamed
without a new version of the report.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from holdfast.doctor.codes import CODES, Severity

__all__ = ["Edit", "Finding", "Remedy", "Repair", "Shape", "ask_for", "finding", "shell"]

Repair: TypeAlias = Literal["chmod", "set_aside"]
"""What ``--fix`` can do by itself."""


_REFERENCE = re.compile(r'"(?:Bearer )?\$\{env:\w+\}"')


class Shape(BaseModel):
    """Every part of a report: fixed once made."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Edit(Shape):
    """A value to write into the configuration."""

    place: str = Field(description="Where it stands now, or where its server stands: file:line:column")
    key: str = Field(description="The key, from the top of the file: mcpServers.weather.url")
    keys: tuple[str, ...] = Field(description="The key inside its server, or inside `holdfast`, step by step")
    value: str = Field(description="What to write there, as JSON")


class Remedy(Shape):
    """What to do: in words, and as whatever can be pasted."""

    text: str = Field(description="What to do, in a sentence")
    commands: tuple[str, ...] = Field(default=(), description="Shell commands to paste, in order")
    edits: tuple[Edit, ...] = Field(default=(), description="Values to write into the configuration")


class Finding(Shape):
    """One thing that is amiss."""

    code: str = Field(description="Stable, HF-…; `holdfast doctor explain CODE` tells more")
    severity: Severity
    words: str = Field(description="What is amiss, in this case")
    detail: str = Field(default="", description="Lines to look at, such as the end of a server's stderr")
    remedy: Remedy
    repair: Repair | None = Field(default=None, description="What `--fix` does about it, where that is safe")
    target: str = Field(default="", description="The file that the repair is about")

    def rewritten(self, change: Callable[[str], str]) -> Finding:
        """The same finding with each of its texts changed: how secrets are kept out."""
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
    """A reference to a variable is left alone: it shows nothing, and ``Bearer`` before it may be part of a secret."""
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
    """A finding of a known code; ``commands`` are what a person can paste."""
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
    """A command that takes a variable's value from the keyboard: it is neither shown nor kept in the history."""
    return f"read -rs {variable} && export {variable}"


def shell(*words: str) -> str:
    """A command line of these words, quoted where a shell needs it."""
    return shlex.join(words)
