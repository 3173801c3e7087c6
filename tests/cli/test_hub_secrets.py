"""The secrets of a hub while it runs: a file that changes, and one that must not be believed."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.access.policy import Policy
from holdfast.config import config_from_mapping
from holdfast.control.hub_finder import running_hubs
from holdfast.serve.hub_secrets import CallerSecrets, SecretFiles
from holdfast.serve.listening import Announcement
from holdfast.serve.options import ServeConfig, Serving

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-16")]

FIRST, SECOND, OPERATOR = "first-token-of-callers", "second-token-of-callers", "token-of-the-operator"


class _Hub:
    """The files of a hub with a token of its callers and one of its operators, and what was done with new ones."""

    def __init__(self, folder: Path) -> None:
        self.callers, self.operators = folder / "callers", folder / "operators"
        self.write(self.callers, FIRST)
        self.write(self.operators, OPERATOR)
        options = ServeConfig(token_file=self.callers, control_token_file=self.operators)
        serving = Serving(
            options=options, config=None, token=FIRST, token_file=self.callers, control_token=OPERATOR, host="127.0.0.1"
        )
        self.secrets = CallerSecrets(serving, Policy)
        self.done: list[tuple[str, str]] = []
        self.files = SecretFiles.of_hub(
            serving,
            self.secrets,
            admin=cast("Any", SimpleNamespace(sessions=SimpleNamespace(use_control_token=self._noted("pages")))),
            tls=None,
            note=cast("Any", SimpleNamespace(change_token=self._noted("commands"))),
            mask=self._noted("masked"),
        )

    def _noted(self, what: str) -> Any:
        return lambda value: self.done.append((what, value))

    def write(self, file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o600)

    @property
    def in_force(self) -> str:
        return self.secrets.tokens["caller"]


async def test_a_new_token_is_masked_in_the_log_and_then_in_force(tmp_path: Path) -> None:
    hub = _Hub(tmp_path)
    hub.write(hub.callers, f"{SECOND}\n")
    await hub.files.refresh()
    assert (hub.in_force, hub.done) == (SECOND, [("masked", SECOND)])


async def test_a_new_token_of_operators_reaches_pages_and_commands_after_it_is_masked(tmp_path: Path) -> None:
    hub = _Hub(tmp_path)
    hub.write(hub.operators, SECOND)
    await hub.files.refresh()
    assert hub.done == [("masked", SECOND), ("pages", SECOND), ("commands", SECOND)]


@pytest.mark.parametrize("text", ["", "short", OPERATOR], ids=["empty", "half written", "that of operators"])
async def test_a_token_of_callers_that_must_not_be_believed_leaves_the_last_one_in_force(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = _Hub(tmp_path)
    hub.write(hub.callers, text)
    with caplog.at_level(logging.WARNING, "holdfast.serve"):
        await hub.files.refresh()
        await hub.files.refresh()
    assert (hub.in_force, hub.done) == (FIRST, [])
    assert len(caplog.messages) == 1, "it is said once, and not every second"
    assert "the last token stays valid" in caplog.messages[0]
    assert OPERATOR not in caplog.text


@pytest.mark.parametrize("first", ["callers", "operators"])
async def test_callers_and_operators_never_have_one_token_also_not_one_that_is_new(first: str, tmp_path: Path) -> None:
    hub = _Hub(tmp_path)
    files = {"callers": hub.callers, "operators": hub.operators}
    hub.write(files.pop(first), SECOND)
    await hub.files.refresh()
    before = hub.in_force
    hub.done.clear()
    (other,) = files.values()
    hub.write(other, SECOND)
    await hub.files.refresh()
    assert (hub.in_force, hub.done) == (before, [])


@pytest.mark.requirement("FLEET-8")
def test_a_new_control_token_announces_no_hub_that_another_process_announces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker follows the file of the token too: commands would find one hub for each worker."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = config_from_mapping({"mcpServers": {}})
    serving = Serving(options=ServeConfig(), config=config, control_token=OPERATOR, host="127.0.0.1", port=1)
    note = Announcement(serving, config)
    note.change_token("its-second-token")
    assert running_hubs() == []
    with note.at(""):
        assert [hub.token for hub in running_hubs()] == ["its-second-token"]
        note.change_token("its-third-token")
        assert [hub.token for hub in running_hubs()] == ["its-third-token"]
        note.withdraw()
        note.change_token("its-fourth-token")
        assert running_hubs() == []
