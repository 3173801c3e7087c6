"""What clients and conformance suites exchange with the hub is what they exchanged before its server side was our own.

The recordings were made through the SDK's server (``recorder.py``). A difference is either in the list of
improvements below, or a defect.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.recorder import RECORDINGS, SUBJECTS, record

pytestmark = pytest.mark.anyio

IMPROVEMENTS = (
    "a message that is no JSON-RPC is refused as an invalid request (-32600), and its text is ours",
    "a plain answer is there at once: a suite that closed an event stream unread had no message to record",
    "a result of a modern server has no empty `_meta` for a legacy client: its own legacy results have none",
)


def _exchanges(lines: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Each exchange as text; a refusal that answers no request is known by its status alone."""
    return Counter(json.dumps(_known(one), sort_keys=True) for one in lines)


def _known(exchange: Mapping[str, Any]) -> Mapping[str, Any]:
    refused = exchange["status"] >= 400 and all(message.get("id") in (None, "*") for message in exchange["messages"])
    messages = "refused" if refused else [_without_empty_meta(message) for message in exchange["messages"]]
    body = exchange["asked"].get("body")
    if isinstance(body, Mapping) and body.get("method") == "subscriptions/listen":
        messages = messages[:1]  # the acknowledgement: when the client stops to read decides how many notices follow
    return {"asked": exchange["asked"], "status": exchange["status"], "messages": messages}


def _without_empty_meta(message: Mapping[str, Any]) -> Mapping[str, Any]:
    result = message.get("result")
    if not isinstance(result, Mapping) or result.get("_meta") != {}:
        return message
    return {**message, "result": {key: value for key, value in result.items() if key != "_meta"}}


@pytest.mark.requirement("HUB-1", "HUB-2", "HUB-6")
@pytest.mark.parametrize("subject", SUBJECTS)
async def test_the_same_messages_are_exchanged_as_before(subject: str, tmp_path: Path) -> None:
    before = [json.loads(line) for line in (RECORDINGS / f"{subject}.json").read_text().splitlines()]
    unread = [one["asked"] for one in before if one["status"] == 200 and not one["messages"]]
    was, now = (
        [one for one in lines if one["asked"] not in unread] for lines in (before, await record(subject, tmp_path))
    )
    lost, new = _exchanges(was) - _exchanges(now), _exchanges(now) - _exchanges(was)
    assert (sorted(lost), sorted(new)) == ([], [])
