"""What the errors of the Python API say, and which ``except`` catches them."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest

from holdfast import Hub, errors
from holdfast.cli.entry import run
from holdfast.core import TimedOut
from holdfast.errors import CallFailed, HoldfastError, NotAnswered, ServerFailure, UnknownTool, explain

pytestmark = pytest.mark.requirement("DX-13")

SENT = {"CallFailed", "CallDenied", "ConnectionClosed"}
NOT_SENT = {
    *("ServerUnavailable", "ServerDisabled", "ServerDenied", "ServerPermanentlyFailed", "BreakerOpen"),
    *("ServerNotReady", "ServerBusy", "HubClosed", "ToolHeld", "NotAudited"),
    *("CallForbidden", "NotApproved", "NotAuthorized"),
}


def test_the_text_of_an_error_is_what_happened_and_then_what_to_do() -> None:
    error = UnknownTool("no server has a tool named `ad`", hint="did you mean add?")
    assert str(error) == "no server has a tool named `ad` (hint: did you mean add?)"
    assert traceback.format_exception_only(error)[-1].count("did you mean add?") == 1
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_error_without_a_hint_is_its_message() -> None:
    assert str(HoldfastError("it failed")) == "it failed"
    assert str(CallFailed(TimedOut(doing="an answer", after=1.0), "it failed", hint="wait")) == "it failed (hint: wait)"


def test_a_model_reads_the_hint_once() -> None:
    assert explain(UnknownTool("no such tool", hint="did you mean add?")).count("you mean add?") == 1


@pytest.mark.parametrize(
    ("hint", "read"),
    [
        ("raise `timeout` in its definition", "it failed. Raise `timeout` in its definition."),
        ("Make the call again.", "it failed. Make the call again."),
        ("did you mean add?", "it failed. Did you mean add?"),
        ("", "it failed."),
    ],
)
def test_a_model_reads_the_hint_as_a_sentence(hint: str, read: str) -> None:
    assert explain(HoldfastError("it failed", hint=hint)) == read


def test_a_command_prints_the_hint_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tools", "--config", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.count("hint:") == 1


def test_one_base_is_that_of_every_call_without_a_result() -> None:
    known = {name: getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    covered = {name for name, kind in known.items() if issubclass(kind, NotAnswered)}
    assert covered == {"NotAnswered", *SENT, *NOT_SENT}
    assert {name for name in covered if issubclass(known[name], ServerFailure)} == SENT


@pytest.mark.anyio
@pytest.mark.parametrize("definition", [{"command": "no-such-command"}, {"command": "x", "disabled": True}])
async def test_the_base_catches_the_call_of_a_server_that_is_not_there(definition: dict[str, object]) -> None:
    async with Hub.from_config({"mcpServers": {"lost": definition}}) as hub:
        await hub.ready(10)
        with pytest.raises(NotAnswered, match="lost"):
            await hub.read_resource("notes://today", server="lost")


@pytest.mark.parametrize(
    "name",
    [
        *("from_config", "tools", "call_tool", "find_tools", "get_prompt", "read_resource", "complete"),
        *("server_health", "reconnect", "toggle", "logged_in", "approve", "apply"),
    ],
)
def test_the_docstring_of_a_method_names_the_errors_that_it_raises(name: str) -> None:
    _, _, told = (inspect.getdoc(getattr(Hub, name)) or "").partition("Raises")
    named = set(re.findall(r"``([A-Z]\w+)``", told))
    assert named
    assert named <= {*errors.__all__}
