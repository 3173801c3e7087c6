"""How a command finds the hub that is meant, and what a hub leaves behind for it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.control.hub_finder import RunningHub, find_hub, registered, running_hubs
from holdfast.errors import NoHub

ME = os.getpid()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


def hub(pid: int = ME, port: int = 4653, **more: object) -> RunningHub:
    given = {"url": f"http://127.0.0.1:{port}", "token": f"secret-{port}", "pid": pid, "started": 1.0, **more}
    return RunningHub(**given)  # type: ignore[arg-type]  # a test's own


def folder(environ: dict[str, str]) -> Path:
    return Path(environ["XDG_STATE_HOME"]) / "holdfast" / "hubs"


def leave(environ: dict[str, str], found: RunningHub, name: str = "") -> Path:
    """As a hub does that another process runs."""
    folder(environ).mkdir(parents=True, exist_ok=True)
    file = folder(environ) / (name or f"{found.pid}-{found.url[-4:]}.json")
    keys = ("url", "token", "pid", "started", "config", "version", "demo")
    file.write_text(json.dumps({"of-another-version": 1, **{key: getattr(found, key) for key in keys}}))
    return file


@pytest.mark.requirement("HUB-5", "SEC-2")
def test_what_a_hub_leaves_is_readable_by_its_user_alone_and_gone_at_its_end(environ: dict[str, str]) -> None:
    with registered(hub(), environ=environ) as file:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert find_hub(environ=environ) == hub()
        assert "secret" not in repr(find_hub(environ=environ))
    assert not list(folder(environ).iterdir())


@pytest.mark.requirement("SEC-2")
def test_a_folder_that_others_could_look_into_is_closed(environ: dict[str, str]) -> None:
    folder(environ).mkdir(parents=True, mode=0o755)
    folder(environ).chmod(0o755)
    with registered(hub(), environ=environ):
        assert stat.S_IMODE(folder(environ).stat().st_mode) == 0o700


@pytest.mark.requirement("HUB-5")
def test_what_a_killed_hub_left_is_passed_over_and_removed(environ: dict[str, str]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = leave(environ, hub(pid=ended.pid))
    with pytest.raises(NoHub) as none:
        find_hub(environ=environ)
    assert "holdfast serve" in none.value.hint
    assert not stale.exists()


@pytest.mark.requirement("HUB-5")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}', '{"url": 1, "token": "t", "pid": "me"}', "\ud800"])
def test_a_file_that_is_no_such_word_is_passed_over(environ: dict[str, str], text: str) -> None:
    folder(environ).mkdir(parents=True)
    (folder(environ) / "1.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert running_hubs(environ) == []


@pytest.mark.requirement("HUB-5")
def test_of_several_hubs_the_one_of_the_same_configuration_is_meant(environ: dict[str, str], tmp_path: Path) -> None:
    mine, other = tmp_path / "mcp.json", tmp_path / "other.json"
    leave(environ, hub(port=4001, config=str(other), started=1.0))
    leave(environ, hub(port=4002, config=str(mine), started=2.0))
    assert find_hub(config=mine, environ=environ).url == "http://127.0.0.1:4002"
    with pytest.raises(NoHub) as several:
        find_hub(environ=environ)
    for told in (f"--hub {ME}   http://127.0.0.1:4001", "http://127.0.0.1:4002", str(other)):
        assert told in several.value.hint
    with pytest.raises(NoHub):
        find_hub(config=tmp_path / "third.json", environ=environ)


@pytest.mark.requirement("HUB-5")
def test_the_one_hub_that_runs_is_meant_also_beside_another_configuration(
    environ: dict[str, str], tmp_path: Path
) -> None:
    leave(environ, hub(port=4001, config=str(tmp_path / "mcp.json")))
    assert find_hub(config=tmp_path / "other.json", environ=environ).url == "http://127.0.0.1:4001"
    with pytest.raises(NoHub, match="no running hub is meant by `other`"):
        find_hub(config=tmp_path / "mcp.json", name="other", environ=environ)


@pytest.mark.requirement("HUB-5")
def test_a_hub_is_chosen_by_its_process_port_address_file_or_folder(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    leave(environ, hub(port=4001, config=str(tmp_path / "work" / "mcp.json")))
    leave(environ, hub(pid=os.getppid(), port=4002, config=str(tmp_path / "home" / "mcp.json")))
    leave(environ, hub(port=4003, config=str(tmp_path / "demo-x" / "mcp.json"), demo=True))
    for name, port in {
        "4001": 4001,
        str(os.getppid()): 4002,
        "http://127.0.0.1:4002/mcp": 4002,
        "127.0.0.1:4001": 4001,
        "work": 4001,
        "work/mcp.json": 4001,
        str(tmp_path / "home"): 4002,
        "demo": 4003,
    }.items():
        assert find_hub(name=name, environ=environ).url == f"http://127.0.0.1:{port}", name
    for name, said in {"mcp.json": "several hubs are meant", "nothing": "no running hub is meant"}.items():
        with pytest.raises(NoHub, match=said) as refused:
            find_hub(name=name, environ=environ)
        assert f"--hub {os.getppid()}   http://127.0.0.1:4002" in refused.value.hint
    with pytest.raises(NoHub, match="no hub is running here"):
        find_hub(name="demo", environ={**environ, "XDG_STATE_HOME": str(tmp_path / "none")})


@pytest.mark.requirement("HUB-5")
@pytest.mark.parametrize("url", ["http://127.0.0.1:4002", "http://127.0.0.1:4002/", "http://127.0.0.1:4002/mcp"])
def test_a_hub_can_be_named_by_its_address(environ: dict[str, str], url: str) -> None:
    leave(environ, hub(port=4001))
    leave(environ, hub(port=4002))
    assert find_hub(url=url, environ=environ).token == "secret-4002"
    assert find_hub(environ={**environ, "HOLDFAST_URL": url}).token == "secret-4002"
    assert find_hub(url=url, environ={**environ, "HOLDFAST_CONTROL_TOKEN": "given"}).token == "given"


@pytest.mark.requirement("HUB-5")
def test_a_hub_elsewhere_needs_its_token(environ: dict[str, str]) -> None:
    url = "https://user:hunter2@hub.example.com"
    with pytest.raises(NoHub) as none:
        find_hub(url=url, environ=environ)
    assert "HOLDFAST_CONTROL_TOKEN" in none.value.hint
    assert "hunter2" not in none.value.message
    found = find_hub(url=url, environ={**environ, "HOLDFAST_CONTROL_TOKEN": "t"})
    assert (found.url, found.token) == (url, "t")


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is a file on Linux alone")
def test_a_hub_that_was_killed_and_is_not_yet_collected_does_not_run(environ: dict[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE) as ended:
        assert ended.stdout is not None
        assert ended.stdout.read() == b""
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays uncollected
        leave(environ, hub(pid=ended.pid))
        assert running_hubs(environ) == []
