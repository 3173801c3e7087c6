"""Large answers are read once, and mean what a reader of the whole says that they mean."""

from __future__ import annotations

import pytest

from holdfast.wire.envelope import SMALL_BYTES, BadJson, Fields
from holdfast.wire.large import split, split_answer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-28")]

TEXT = b"x" * (SMALL_BYTES + 10)
RESULT = b'{"content":[{"type":"text","text":"%b"}],"n":1.0e-7, "u":"\\ud83d"}' % TEXT
PLAIN = RESULT.replace(b"\\ud83d", "ä".encode())

READ_ONCE = (
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % PLAIN,
    b' {"id" : -7, "jsonrpc": "2.0", "result" :%b} \r\n' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % RESULT,
)
READ_AS_A_WHOLE = (
    b'{"result":%b,"jsonrpc":"2.0","id":7}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b,"more":{}}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":{},"result":%b}' % PLAIN,
    b'{"jsonrpc":"2.0","id":"a","result":%b}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"error":%b}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"},"id":8}' % TEXT,
)
NOT_JSON = (
    b'{"jsonrpc":"2.0","id":7,"result":%b' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b}}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % PLAIN[:-1],
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"n":NaN,"text":"%b"}}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b\xff"}}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"deep":%b,"text":"%b"}}' % (b"[" * 20_000 + b"]" * 20_000, TEXT * 20),
)


def written(members: Fields) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in members.items()}


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("answer", READ_ONCE + READ_AS_A_WHOLE, ids=lambda one: one[:30])
async def test_a_large_answer_has_the_members_that_a_reader_of_the_whole_finds(
    answer: bytes, kind: type[bytes | bytearray]
) -> None:
    members, result = await split_answer(kind(answer))
    assert written(members) == written(await split(answer))
    assert (result is not None) == (answer in READ_ONCE)
    if result is not None:
        assert result.written() == bytes(members["result"])
        assert result.value()["n"] == 1.0e-7
        assert result.is_large


@pytest.mark.parametrize("answer", NOT_JSON, ids=range(len(NOT_JSON)))
async def test_a_large_answer_that_is_no_json_is_refused(answer: bytes) -> None:
    with pytest.raises(BadJson) as seen:
        await split(answer)
    with pytest.raises(BadJson, match=str(seen.value)):
        await split_answer(answer)
