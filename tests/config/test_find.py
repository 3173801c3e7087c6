"""Configurations are found in the promised order, and what cannot be read says why."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from holdfast.config.config_files import LARGEST, TrustStore, find_config, read_config, search_places
from holdfast.config.read import load_config
from holdfast.errors import ConfigError, ConfigNotFound
from tests.config.helpers import spec

IN_ORDER = ["work/mcp.json", "work/.mcp.json", "work/.vscode/mcp.json", "home/.config/holdfast/mcp.json"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def put(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"mcpServers": {}}')
    return file


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_first_that_exists_is_used(tmp_path: Path, environ: dict[str, str], cwd: Path, first: int) -> None:
    expected, *_ = [put(tmp_path / name) for name in IN_ORDER[first:]]
    assert find_config(None, environ=environ, cwd=cwd) == expected
    TrustStore(environ).trust(expected, expected.read_bytes())
    assert load_config(environ=environ, cwd=cwd).source == expected


def test_a_named_file_comes_before_the_variable_and_the_variable_before_the_search(
    tmp_path: Path, environ: dict[str, str], cwd: Path
) -> None:
    put(cwd / "mcp.json")
    environ["HOLDFAST_CONFIG"] = "from-env.json"
    assert find_config(None, environ=environ, cwd=cwd) == cwd / "from-env.json"
    assert find_config(Path("given.json"), environ=environ, cwd=cwd) == cwd / "given.json"
    environ["HOLDFAST_CONFIG"] = ""
    assert find_config(None, environ=environ, cwd=cwd) == cwd / "mcp.json"


def test_the_users_folder_follows_xdg_if_it_is_absolute(cwd: Path, environ: dict[str, str]) -> None:
    assert Path("/xdg/holdfast/mcp.json") in search_places(environ={**environ, "XDG_CONFIG_HOME": "/xdg"}, cwd=cwd)
    assert search_places(environ={**environ, "XDG_CONFIG_HOME": "xdg"}, cwd=cwd) == search_places(
        environ=environ, cwd=cwd
    )


def test_macos_has_a_place_of_its_own(cwd: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    last = search_places(environ=environ, cwd=cwd)[-1]
    assert last == Path(environ["HOME"]) / "Library/Application Support/holdfast/mcp.json"


def test_nothing_found_lists_every_place(cwd: Path, environ: dict[str, str]) -> None:
    (cwd / "mcp.json").mkdir()
    with pytest.raises(ConfigNotFound) as caught:
        load_config(environ=environ, cwd=cwd)
    assert caught.value.searched == search_places(environ=environ, cwd=cwd)
    assert str(cwd / ".vscode" / "mcp.json") in caught.value.hint


def test_a_named_file_that_is_not_there_is_an_error_and_not_a_reason_to_search(
    cwd: Path, environ: dict[str, str]
) -> None:
    put(cwd / "mcp.json")
    with pytest.raises(ConfigError, match="the file does not exist") as caught:
        load_config(Path("other.json"), environ=environ, cwd=cwd)
    assert not isinstance(caught.value, ConfigNotFound)
    assert caught.value.problems[0].file == cwd / "other.json"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is a folder"):
        read_config(tmp_path)


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:  # a mode of 0 does not stop root, who often runs tests
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ConfigError, match="permission to read") as caught:
        read_config(tmp_path / "mcp.json")
    assert "chmod" in caught.value.hint


def test_other_faults_of_a_file_are_told_too(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(loop)
    with pytest.raises(ConfigError, match="NUL"):
        read_config(Path("a\0b"))


def test_an_endless_file_is_not_read_to_the_end() -> None:
    with pytest.raises(ConfigError, match="too large") as caught:
        read_config(Path("/dev/zero"))
    assert f"{LARGEST >> 20} MiB" in caught.value.hint


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"servers": {"s": {"command": 1}}}')
    os.close(writing)
    try:
        found = load_config(Path(f"/dev/fd/{reading}"), environ={})
    finally:
        os.close(reading)
    assert found.servers["s"].problems


def test_a_relative_file_gives_absolute_folders(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cwd)
    assert spec({"command": "x"}, file=Path("mcp.json")).cwd == cwd
