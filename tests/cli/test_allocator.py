"""Memory of large messages is used again: counted are the pages that the system has to give (PERF-6)."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from holdfast.serve.run import KEPT_BYTES

PROGRAM = """
import resource, sys
if sys.argv[1] == "kept":
    from holdfast.serve.run import keep_freed_memory
    keep_freed_memory()

def message():
    pieces = [bytes(256 * 1024) for _ in range(40)]
    return b"".join(pieces)

message()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    message()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _pages(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_a_large_message_uses_the_memory_of_the_one_before() -> None:
    pages_of_a_message = 10 * 1024 * 1024 // 4096
    assert KEPT_BYTES > 10 * 1024 * 1024
    assert _pages("kept") < pages_of_a_message < _pages("as usual")
