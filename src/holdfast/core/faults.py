"""A fault of the program itself, as one line of bounded length.

An input that causes a fault may cause a thousand. A traceback of each, with those of all exceptions before it, holds up
the event loop longer than the fault did.
"""

from __future__ import annotations

from typing import Final

__all__ = ["fault_line"]

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
