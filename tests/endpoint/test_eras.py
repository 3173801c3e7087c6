"""What the hub edits in a result for a client of the other era."""

from __future__ import annotations

import json

import pytest

from holdfast.endpoint.eras import result_for_client
from holdfast.wire import RawObject

STAMP = b'{"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}%s}'


@pytest.mark.requirement("HUB-7")
@pytest.mark.parametrize(("more", "left"), [(b"", None), (b', "mine": 1', {"mine": 1})])
def test_a_legacy_client_gets_the_meta_that_the_server_meant_for_it(more: bytes, left: object) -> None:
    said = RawObject.read(b'{"content": [], "resultType": "complete", "_meta": ' + STAMP % more + b"}")
    shown = json.loads(result_for_client("tools/call", said, modern=False, stamp=b"{}").written())
    assert shown == {"content": [], **({"_meta": left} if left else {})}
