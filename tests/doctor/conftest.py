"""The fixtures of the doctor's tests."""

from __future__ import annotations

from tests.doctor.examination import clinic

__all__ = ["clinic"]
