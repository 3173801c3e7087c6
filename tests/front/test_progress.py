"""A progress notice is written piece by piece, and says the same as one that an encoder wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.front.clients import Call
from holdfast.front.inbound import notice_message

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2")]


class Notices:
    """A channel that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Mapping[str, Any] | None]] = []

    def tell(self, method: str, params: Mapping[str, Any] | None, *, everywhere: bool = False) -> None:
        self.told.append((method, params))


@pytest.mark.parametrize("token", [7, -1, 10**30, "t", 'a "quoted"\n\u00e4 \ud83d', ""])
@pytest.mark.parametrize(
    ("progress", "total", "message"),
    [(1, None, None), (0.1, 1e300, ""), (True, 10**300, 'say "x"\n\u2028\U0001f600'), (-0.0, 5e-324, "cut \ud83d")],
)
async def test_a_notice_says_the_same_as_one_that_an_encoder_wrote(
    token: str | int, progress: float, total: float | None, message: str | None
) -> None:
    channel: Any = Notices()
    nobody: Any = None
    await Call(nobody, "server", channel=channel, token=token).progress(progress, total, message)
    ((method, params),) = channel.told
    assert params is not None
    written = json.dumps({"jsonrpc": "2.0", "method": method, "params": dict(params)}, separators=(",", ":"))
    assert notice_message(method, params) == written.encode()
    assert params == {
        "progressToken": token,
        "progress": progress,
        **({"total": total} if total is not None else {}),
        **({"message": message} if message is not None else {}),
    }
