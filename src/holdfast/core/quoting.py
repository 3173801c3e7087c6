"""Foreign text inside our own: quoted, labelled with its origin, cut, and free of what a reader cannot see (MSG-11).

A server, a process or a client may write anything. Where our text quotes it, it is data: it stays inside its quotes and
on its line, so it cannot look like a sentence, a heading or a line of ours. Results and descriptions are not quoted:
they pass as they are.

``fault_line`` is a fault of the program itself, as one line of bounded length.

An input that causes a fault may cause a thousand. A traceback of each, with those of all exceptions before it, holds up
the event loop longer than the fault did.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["INVISIBLE", "fault_line", "quote_block", "quoted", "quoted_line", "quoted_name", "without_invisible"]

SHOWN = 200
"""How many characters of a foreign text are shown in a sentence."""

LONGEST_BLOCK = 4_000
"""How many characters of a foreign text are shown as a block."""

INVISIBLE = re.compile(
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters without a shape: zero width, writing direction, variation, format controls of scripts, and tags, which
spell hidden letters."""

_CONTROL = re.compile(r"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_invisible(text: str) -> str:
    """``text`` without terminal sequences, control characters and invisible ones; line ends and tabs stay."""
    return INVISIBLE.sub("", _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def quoted_line(text: str, most: int = SHOWN) -> str:
    """One line of a foreign text, cut to a bound, with no quote that could end ours early."""
    line = " ".join(without_invisible(text[: 8 * most]).split()).replace('"', "'")
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def quoted(text: str, *, origin: str = "", most: int = SHOWN) -> str:
    """A foreign text in quotes, with its origin: ``stderr: "no such file"``. Empty if nothing of it can be shown."""
    line = quoted_line(text, most)
    if not line:
        return ""
    return f'{origin}: "{line}"' if origin else f'"{line}"'


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./@$%*+~-][A-Za-z0-9_.,:;/?#@$%&*=+~!-]*")


def quoted_name(text: str, most: int = 80, *, ticks: bool = False) -> str:
    """A foreign name, version or address: as it is where it is one short plain word, else quoted.

    A word without blanks, quotes and invisible characters cannot look like a sentence of ours. With ``ticks`` it is
    between backticks, as our sentences show names.
    """
    if len(text) <= most and _PLAIN_NAME.fullmatch(text):
        return f"`{text}`" if ticks else text
    return quoted(text, most=most) or '""'


def quote_block(text: str, most: int = LONGEST_BLOCK) -> str:
    """A foreign text of several lines, each of them marked as quoted: none can be taken for ours."""
    shown = without_invisible(text[: 2 * most]).strip()
    cut = shown if len(shown) <= most else shown[: most - 1].rstrip() + "…"
    return "\n".join(f"> {line}".rstrip() for line in cut.splitlines())


LONGEST_TEXT: Final = 200


def fault_line(exc: BaseException) -> str:
    """Return what it is, what it says and where it was raised."""
    text = " ".join(_text_of(exc)[: 2 * LONGEST_TEXT].split())[:LONGEST_TEXT]
    place = ""
    if (trace := exc.__traceback__) is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code
        place = f", in {code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
    return f"{type(exc).__name__}: {text}{place}" if text else f"{type(exc).__name__}{place}"


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - an exception of a library may fail to say what it is
        return ""
