"""Durations and sizes as people write them: ``250ms``, ``10s``, ``1.5h``; ``64KiB``, ``16MiB``."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = [
    "DURATION_PATTERN",
    "SIZE_PATTERN",
    "Unfit",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_size",
]

DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?\s*(ms|s|m|h)$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?\s*(B|KB|KiB|MB|MiB|GB|GiB)$"

LONGEST = 365 * 24 * 3600.0
"""Seconds; a duration over a year is a typing error."""

LARGEST = 1 << 40
"""Bytes; a size over a tebibyte is a typing error."""

_SECONDS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES: Mapping[str, int] = {
    "b": 1,
    "kb": 10**3,
    "kib": 1 << 10,
    "mb": 10**6,
    "mib": 1 << 20,
    "gb": 10**9,
    "gib": 1 << 30,
}
_AMOUNT = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*", re.ASCII)


class Unfit(ValueError):
    """A value that cannot be used. The message follows the key's name: ``must be a list``."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse_duration(value: object) -> float:
    """Seconds; ``Unfit`` says what to write instead."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise _without_unit(value)
    amount, unit = _split(value, 'must be a duration such as "10s"', "the units are ms, s, m and h")
    if not unit:
        raise _without_unit(amount)
    if unit not in _SECONDS:
        raise Unfit("has a unit that is not known", hint='the units are ms, s, m and h, as in "250ms" or "5m"')
    if amount * _SECONDS[unit] > LONGEST:
        raise Unfit("is longer than a year", hint="the units are ms, s, m and h")
    return amount * _SECONDS[unit]


def format_duration(seconds: float) -> str:
    """A short spelling that ``parse_duration`` reads back as the same time."""
    if seconds < 1:
        return f"{_decimal(seconds * 1000)}ms" if seconds else "0s"
    unit = next((unit for unit in ("h", "m") if seconds % _SECONDS[unit] == 0), "s")
    return f"{_decimal(seconds / _SECONDS[unit])}{unit}"


def parse_size(value: object) -> int:
    """Bytes; a bare number is taken as bytes, since the keys say so by their names."""
    if isinstance(value, int) and not isinstance(value, bool):
        size: float = value
    else:
        amount, unit = _split(value, 'must be a size such as "16MiB"', "the units are B, KiB, MiB and GiB")
        if unit.lower() not in _BYTES and unit:
            raise Unfit("has a unit that is not known", hint='the units are B, KiB, MiB and GiB, as in "64KiB"')
        size = amount * _BYTES[unit.lower() or "b"]
    if not 1 <= size <= LARGEST:
        raise Unfit("must be between 1 byte and 1024 GiB", hint='write it as in "16MiB"')
    return int(size)


def format_size(size: int) -> str:
    """The shortest spelling that ``parse_size`` reads back as the same size."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit.lower()] == 0:
            return f"{size // _BYTES[unit.lower()]}{unit}"
    return f"{size}B"


def _without_unit(amount: float) -> Unfit:
    number = _decimal(amount)
    return Unfit("needs a unit", hint=f'write "{number}s" for seconds or "{number}ms" for milliseconds')


def _decimal(amount: float) -> str:
    return f"{amount:.6f}".rstrip("0").rstrip(".")


def _split(value: object, message: str, hint: str) -> tuple[float, str]:
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Unfit(message, hint=hint)
    return float(match.group(1)), match.group(2)
