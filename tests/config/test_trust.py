"""A project file that the search finds is used only after the user trusted its content at its path."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.config.config_files import TrustStore, read_config, rewrite_config, servers_in, variables_in, write_whole
from holdfast.config.definition import steers
from holdfast.config.read import load_config
from holdfast.errors import ConfigError, UntrustedConfig

pytestmark = pytest.mark.requirement("SEC-8")

TEXT = json.dumps({"mcpServers": {"a": {"command": "x"}}}).encode()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mcp.json").write_bytes(TEXT)
    return folder


@pytest.mark.parametrize("name", ["mcp.json", ".mcp.json", ".vscode/mcp.json"])
def test_a_found_project_file_is_refused_until_it_is_trusted(
    tmp_path: Path, environ: dict[str, str], name: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(TEXT)
    with pytest.raises(UntrustedConfig) as caught:
        load_config(environ=environ, cwd=tmp_path)
    assert f"holdfast trust {file}" in caught.value.hint
    TrustStore(environ).trust(file, TEXT)
    config = load_config(environ=environ, cwd=tmp_path)
    assert (list(config.servers), config.found) == (["a"], True)


def test_a_named_file_needs_no_trust(project: Path, environ: dict[str, str]) -> None:
    assert load_config(project / "mcp.json", environ=environ).found is False
    named = {**environ, "HOLDFAST_CONFIG": str(project / "mcp.json")}
    assert load_config(environ=named, cwd=project.parent).found is False


def test_the_users_own_file_needs_no_trust(tmp_path: Path, environ: dict[str, str]) -> None:
    own = tmp_path / "home" / ".config" / "holdfast"
    own.mkdir(parents=True)
    (own / "mcp.json").write_bytes(TEXT)
    assert list(load_config(environ=environ, cwd=tmp_path).servers) == ["a"]


def test_an_edit_after_trust_asks_again(project: Path, environ: dict[str, str]) -> None:
    TrustStore(environ).trust(project / "mcp.json", TEXT)
    (project / "mcp.json").write_bytes(TEXT.replace(b'"x"', b'"evil"'))
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=project)
    (project / "mcp.json").write_bytes(TEXT)
    load_config(environ=environ, cwd=project)


@pytest.mark.requirement("SEC-8")
def test_a_file_that_is_exchanged_after_the_check_is_not_used(
    project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project / "mcp.json"
    TrustStore(environ).trust(file, file.read_bytes())
    checked = TrustStore.is_trusted

    def exchange(self: TrustStore, found: Path, data: bytes) -> bool:
        answer = checked(self, found, data)
        file.write_text('{"mcpServers": {"evil": {"command": "evil"}}}')
        return answer

    monkeypatch.setattr(TrustStore, "is_trusted", exchange)
    assert "evil" not in load_config(environ=environ, cwd=project).servers


@pytest.mark.requirement("SEC-8")
def test_the_same_content_at_another_path_is_not_trusted(
    project: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    TrustStore(environ).trust(project / "mcp.json", TEXT)
    other = tmp_path / "other"
    other.mkdir()
    (project / "mcp.json").rename(other / "mcp.json")
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=other)


def test_a_link_to_a_trusted_file_is_not_trusted(project: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    TrustStore(environ).trust(project / "mcp.json", TEXT)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mcp.json").symlink_to(project / "mcp.json")
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=other)


def test_a_link_at_a_trusted_path_is_checked_by_what_it_leads_to(
    project: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    TrustStore(environ).trust(project / "mcp.json", TEXT)
    (tmp_path / "evil.json").write_bytes(TEXT.replace(b'"x"', b'"evil"'))
    (project / "mcp.json").unlink()
    (project / "mcp.json").symlink_to(tmp_path / "evil.json")
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=project)


def test_a_file_that_everyone_may_write_is_refused_although_it_is_trusted(
    project: Path, environ: dict[str, str]
) -> None:
    TrustStore(environ).trust(project / "mcp.json", TEXT)
    (project / "mcp.json").chmod(0o666)
    with pytest.raises(ConfigError, match="every user of this machine can write") as caught:
        load_config(environ=environ, cwd=project)
    assert "chmod o-w" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_although_it_is_trusted(project: Path, environ: dict[str, str]) -> None:
    TrustStore(environ).trust(project / "mcp.json", TEXT)
    os.chown(project / "mcp.json", 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_config(environ=environ, cwd=project)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_is_refused(project: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    link = other / "mcp.json"
    link.symlink_to(project / "mcp.json")
    TrustStore(environ).trust(link, TEXT)
    load_config(environ=environ, cwd=other)
    os.lchown(link, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_config(environ=environ, cwd=other)


def test_a_trust_store_that_others_can_write_is_worth_nothing(project: Path, environ: dict[str, str]) -> None:
    store = TrustStore(environ)
    store.trust(project / "mcp.json", TEXT)
    store.file.chmod(0o666)
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=project)


def test_a_damaged_trust_store_trusts_nothing_and_is_set_aside_by_the_next_trust(
    project: Path, environ: dict[str, str]
) -> None:
    store = TrustStore(environ)
    store.trust(project / "mcp.json", TEXT)
    store.file.write_text("{")
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=project)
    store.trust(project / "mcp.json", TEXT)
    load_config(environ=environ, cwd=project)
    assert store.file.with_name("trusted.json.corrupt-1").read_text() == "{"


def test_trust_can_be_taken_back(project: Path, environ: dict[str, str]) -> None:
    store = TrustStore(environ)
    store.trust(project / "mcp.json", TEXT)
    assert store.forget(project / "mcp.json") is True
    assert store.forget(project / "mcp.json") is False
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=project)


def test_the_store_is_private(project: Path, environ: dict[str, str]) -> None:
    store = TrustStore(environ)
    store.trust(project / "mcp.json", TEXT)
    assert (store.file.stat().st_mode & 0o777, store.file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_broken_file_is_reported_as_broken_and_its_env_file_is_not_read_before_trust(
    project: Path, environ: dict[str, str]
) -> None:
    (project / "mcp.json").write_text("{")
    with pytest.raises(ConfigError, match="not closed"):
        load_config(environ=environ, cwd=project)
    (project / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "envFile": "/no/such/file"}}}')
    with pytest.raises(UntrustedConfig):
        load_config(environ=environ, cwd=project)


def test_the_definitions_of_a_file_are_known_with_their_variables() -> None:
    text = json.dumps(
        {
            "mcpServers": {
                "run": {"command": "sh", "args": ["-c", "evil ${HOME}"], "env": {"T": "${env:GITHUB_TOKEN}"}},
                "send": {"url": "https://evil.example/mcp", "headers": {"X": "${A:-b}", "Y": "$${NOT_ONE}"}},
            }
        }
    )
    (run, runs), (send, sends) = servers_in(text.encode())
    assert (run, runs["args"], variables_in(runs)) == ("run", ["-c", "evil ${HOME}"], ("HOME", "GITHUB_TOKEN"))
    assert (send, sends["url"], variables_in(sends)) == ("send", "https://evil.example/mcp", ("A",))


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_without_a_wait(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "mcp.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with pytest.raises(ConfigError, match=r"no regular file|a folder"):
        read_config(file, found=True)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "Path", "LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "NODE_OPTIONS", "NODE_PATH"),
        *(
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "npm_config_registry",
            "NPM_CONFIG_USERCONFIG",
            "UV_INDEX_URL",
            "PIP_INDEX_URL",
        ),
        *("BASH_ENV", "ENV", "GIT_SSH_COMMAND", "PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "HOME"),
    ],
)
def test_a_variable_that_changes_what_runs_is_known(name: str) -> None:
    assert steers(name)


@pytest.mark.parametrize(
    "name",
    ["API_KEY", "GOOGLE_API_KEY", "GITHUB_TOKEN", "NPM_TOKEN", "DEBUG", "LANG", "LDAP_URL", "MODE", "HTTP_PROXY"],
)
def test_an_ordinary_variable_is_not_marked(name: str) -> None:
    assert not steers(name)


def test_what_replaces_an_edit_of_our_own_at_once_is_not_trusted(
    project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, evil = project / "mcp.json", TEXT.replace(b'"x"', b'"evil"')
    TrustStore(environ).trust(file, TEXT)

    def written_and_replaced(place: Path, text: str) -> None:
        write_whole(place, text)
        place.write_bytes(evil)

    monkeypatch.setattr("holdfast.config.config_files.write_whole", written_and_replaced)
    rewrite_config(file, TEXT.decode().replace('"x"', '"y"'), environ=environ)
    assert not TrustStore(environ).is_trusted(file, evil)
