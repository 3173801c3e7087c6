"""The README and the tutorial on a fresh Debian, whose Python is externally managed: empty home, no Holdfast on PATH.

What is installed is the wheel, as the package index would give it. A chroot is made by ``mmdebstrap`` from the package
sources of this machine. The machine's pip settings and certificates are lent to it; nothing of them is part of the
project.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from release.distributions import build, version_of
from release.packages import debian as debian_package
from tests.docs.documented import ROOT, commands_of
from tests.docs.test_docs import steady

pytestmark = [pytest.mark.field, pytest.mark.requirement("DX-1", "DX-14"), pytest.mark.timeout(1500)]

PACKAGES = "ca-certificates,make,pipx,python3-venv"
LENT = re.compile(r"^(PIP_|UV_|SSL_CERT_|REQUESTS_CA_|HTTPS?_PROXY|NO_PROXY|https?_proxy|no_proxy)")
MINUTES = 900
DIST = "/srv/dist"
"""Where the files of the release are in that Debian. pip and uv look there, and find no holdfast-mcp elsewhere."""

CURSOR = '{"mcpServers": {"letters": {"command": "python3", "args": ["/home/me/clone/docs/examples/files_server.py"]}}}'


class Debian:
    """A Debian of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, script: str, *, user: str = "me", network: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a script as a new login of a user. Without the network, every port is free."""
        alone = [] if network else ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "alone"]
        lent = {name: value for name, value in os.environ.items() if LENT.match(name)}
        for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
            lent[name] = f"{lent.get(name, '')} {DIST}".strip()
        shell = f"cd; cd clone 2>/dev/null; export TERM=dumb COLUMNS=80\n{script}"
        inner = f'exec setpriv --reuid {user} --regid {user} --init-groups env -i HOME=/home/{user} "$@" bash -lc "$0"'
        given = [f"{name}={value}" for name, value in lent.items()]
        command = [*alone, "chroot", str(self.root), "bash", "-c", inner, shell, *given]
        return subprocess.run(command, capture_output=True, text=True, timeout=MINUTES, check=False)

    def does(self, script: str, *, user: str = "me", network: bool = False) -> str:
        ran = self.run(script, user=user, network=network)
        assert ran.returncode == 0, f"{script}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
        return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("needs root and mmdebstrap: apt-get install mmdebstrap")
    folder = tmp_path_factory.mktemp("debian")
    archive = folder / "debian.tar"
    if given := os.environ.get("HOLDFAST_FRESH_DEBIAN"):  # a tarball of an earlier run, to save its minutes
        archive = Path(given)
    else:
        suite = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
        assert suite is not None
        sources = sorted(map(str, Path("/etc/apt/sources.list.d").glob("*.sources")))
        command = ["mmdebstrap", "--variant=apt", f"--include={PACKAGES}", suite[1], str(archive), *sources]
        subprocess.run(command, check=True, capture_output=True, timeout=MINUTES)
    root = folder / "root"
    root.mkdir()
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="fully_trusted")
    build(root / DIST.lstrip("/"))
    with ExitStack() as stack:
        _lend(root, stack)
        machine = Debian(root)
        for user in ("me", "you"):
            subprocess.run(["chroot", str(root), "useradd", "-m", "-s", "/bin/bash", user], check=True)
            _clone(root / "home" / user / "clone")
            subprocess.run(["chroot", str(root), "chown", "-R", f"{user}:", f"/home/{user}"], check=True)
        yield machine


def _lend(root: Path, stack: ExitStack) -> None:
    """The machine's names, certificates, pip settings, and the folders that those settings name."""
    files = ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", *_certificates()]
    for name in files:
        if Path(name).is_file():
            target = root / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(name, target)
    settings = Path("/etc/pip.conf").read_text() if Path("/etc/pip.conf").is_file() else ""
    named = f"{settings} {' '.join(value for name, value in os.environ.items() if LENT.match(name))}"
    folders = {
        "/" + Path(found).parts[1] + "/" + Path(found).parts[2] for found in re.findall(r"(?<!\w)/opt/[\w./-]+", named)
    }
    for folder in sorted(one for one in folders if Path(one).is_dir()):
        _mounted(folder, root / folder.lstrip("/"), stack)
    for folder in ("/proc", "/dev", "/dev/pts"):
        _mounted(folder, root / folder.lstrip("/"), stack)


def _certificates() -> list[str]:
    return sorted(
        {value for name, value in os.environ.items() if LENT.match(name) and value.endswith((".crt", ".pem"))}
    )


def _mounted(folder: str, place: Path, stack: ExitStack) -> None:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, str(place)], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)


def _clone(place: Path) -> None:
    """What a clone has: the files under version control."""
    place.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)


def printed(said: str, command: str) -> str:
    """What a command of a walk printed."""
    return said.partition(f"### {command}\n")[2].partition("\n### ")[0]


WALK = """\
say() {{ printf '\\n### %s\\n' "$1"; }}
mkdir -p ~/.cursor; printf '%s' '{cursor}' > ~/.cursor/mcp.json
say '{demo}'; {demo} > ~/demo 2>&1 & hub=$!
until grep -q 'ready when' ~/demo; do sleep 0.2; done
cat ~/demo
say '{tour}'; {tour} 2>&1
say '{watch}'; TERM=xterm timeout 20 script -qec '{watch}' /dev/null 2>&1 </dev/null | head -c 4000
kill $hub; wait $hub 2>/dev/null
say '{import_}'; {import_} 2>&1
say '{apply}'; {apply} --yes 2>&1
say '{serve}'; {serve} > ~/serve 2>&1 & own=$!
until grep -q 'ready when' ~/serve || ! kill -0 $own; do sleep 0.2; done
cat ~/serve; kill $own; wait $own 2>/dev/null
say '{tools}'; {tools} 2>&1
say '{call}'; {call} 2>&1
say '{doctor}'; {doctor} 2>&1
say end
"""


def test_the_readme_works_as_printed(debian: Debian) -> None:
    refused = debian.run("pip install . || python3 -m pip install .", network=True)
    assert "externally-managed-environment" in refused.stderr or "No module named pip" in refused.stderr
    assert debian.run("command -v holdfast").returncode != 0
    commands = [one for one in commands_of("README.md") if not one.startswith("make ")]
    install, demo, tour, watch, import_, apply, serve, tools, call, doctor = commands
    assert install == "pipx install holdfast-mcp"
    debian.does(install, network=True)

    said = debian.does(
        WALK.format(
            cursor=CURSOR,
            demo=demo,
            tour=tour,
            watch=watch,
            import_=import_,
            apply=apply,
            serve=serve,
            tools=tools,
            call=call,
            doctor=doctor,
        )
    )
    readme = (ROOT / "README.md").read_text()
    assert "MCP endpoint: http://127.0.0.1:4653/mcp" in printed(said, demo)
    assert "command not found" not in said
    assert printed(said, tour).strip()
    assert "vault" in printed(said, watch)
    assert "cursor" in printed(said, import_)
    assert "Cursor uses the hub now" in printed(said, apply)
    assert "MCP endpoint: http://127.0.0.1:4653/mcp" in printed(said, serve)
    assert printed(said, call).strip() == "6"
    for command in (tools, doctor):
        shown = readme.partition(f"$ {command}\n")[2].partition("```")[0]
        assert steady(printed(said, command).replace("/home/me/clone/", "")) == steady(shown)


SETUP = """\
say() {{ printf '\\n### %s\\n' "$1"; }}
mkdir -p ~/.config/Claude ~/.cursor
printf '%s' '{desktop}' > ~/.config/Claude/claude_desktop_config.json; printf '%s' '{cursor}' > ~/.cursor/mcp.json
cp -r ~/.config/Claude ~/.cursor /tmp/
say setup; holdfast setup --yes 2>&1 </dev/null; echo "code $?"
say again; holdfast setup --yes 2>&1 </dev/null; echo "code $?"
say desktop
entry='import json, os, pathlib, sys; one = json.loads(pathlib.Path(sys.argv[1]).read_text())["mcpServers"]["holdfast"]'
run='os.chdir("/"); os.execve(one["command"], [one["command"], *one["args"]], {{"HOME": os.environ["HOME"]}})'
info='{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"Claude","version":"1"}}}}'
{{ printf '%s\\n' '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":'"$info"'}}'
   printf '%s\\n' '{{"jsonrpc":"2.0","method":"notifications/initialized"}}'
   printf '%s\\n' '{{"jsonrpc":"2.0","id":2,"method":"tools/list"}}'
   until grep -q word_count ~/answers; do sleep 0.2; done
   holdfast status > ~/status 2>&1
}} | timeout 60 python3 -c "$entry; $run" ~/.config/Claude/claude_desktop_config.json > ~/answers
cat ~/answers
say status; cat ~/status
say check; holdfast check --require letters/word_count 2>&1; echo "code $?"
say uninstall; holdfast uninstall --yes 2>&1; echo "code $?"
diff -r /tmp/Claude ~/.config/Claude && diff -r /tmp/.cursor ~/.cursor && echo 'clients as before'
say left; pgrep -u me -f 'holdfast|files_server'; ls ~/.config/holdfast 2>&1
say end
"""


def test_setup_goes_from_nothing_to_a_working_client_and_uninstall_back(debian: Debian) -> None:
    """Claude Desktop is started as desktops start it: in /, without PATH."""
    if debian.run("command -v holdfast").returncode != 0:
        debian.does("pipx install holdfast-mcp", network=True)
    said = debian.does(SETUP.format(desktop=CURSOR, cursor=CURSOR))
    first = printed(said, "setup")
    assert "1 of 1 server work" in first
    assert "it cannot run as a service" in first
    assert "code 0" in first
    assert "code 0" in printed(said, "again"), "a second run finds everything in its place"
    assert "letters__word_count" in printed(said, "desktop")
    assert "Claude" in printed(said, "status")
    assert "code 0" in printed(said, "check")
    undone = printed(said, "uninstall")
    assert "code 0" in undone
    assert "clients as before" in undone
    assert "has ended" in undone
    assert [line for line in printed(said, "left").splitlines() if line.strip().isdigit()] == [], "nothing runs on"


def test_the_tutorial_works_as_printed(debian: Debian) -> None:
    install, *rest = commands_of("docs/tutorial.md")
    debian.does(f"{install} 2>&1 || true", network=True)
    say = "".join(
        f"printf '\\n### %s\\n' '{command}'; {command} 2>&1 || true\n" for command in rest if "'" not in command
    )
    said = debian.does(say + "printf '\\n### end\\n'")
    assert "command not found" not in said
    tools, call, add, show, own, doctor = rest
    assert "files  available  2 tools" in printed(said, tools)
    assert printed(said, call).strip() == "6"
    assert "It works: 2 tools." in printed(said, add)
    assert "words" in printed(said, show)
    assert "words  available  2 tools" in printed(said, own)
    assert "1 of 3 servers work" in printed(said, doctor)
    program = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), flags=re.DOTALL)[0]
    debian.does("python3 -m venv ~/env && ~/env/bin/pip install -q holdfast-mcp", network=True)
    assert debian.does(f"~/env/bin/python - <<'END'\n{program}\nEND").splitlines()[-1] == "6"


def test_uv_gives_the_command_too(debian: Debian) -> None:
    assert "`uv tool install holdfast-mcp` does the same" in (ROOT / "README.md").read_text()
    debian.does("pipx install uv && ~/.local/bin/uv tool install holdfast-mcp", user="you", network=True)
    assert debian.does("holdfast --version", user="you").strip() == f"holdfast {version_of()}"
    said = debian.does("~/.local/bin/uvx --offline holdfast-mcp --version", user="you")
    assert said.strip().endswith(f"holdfast {version_of()}")


def test_the_debian_package_serves_and_leaves_nothing(debian: Debian) -> None:
    dist = debian.root / DIST.lstrip("/")
    about = {"version": version_of(), "description": "A test", "homepage": "https://example.com"}
    lock = ROOT / "deploy/docker/requirements.lock"
    made = debian_package(next(dist.glob("*.whl")), lock, dist, about=about)
    debian.does(
        f"apt-get update -q && apt-get install -y -q --no-install-recommends {DIST}/{made.name}",
        user="root",
        network=True,
    )
    said = debian.does(
        "/usr/bin/holdfast serve --demo --port 0 > ~/packaged 2>&1 & hub=$!\n"
        "until grep -q 'ready when' ~/packaged; do sleep 0.2; done\n"
        "url=$(sed -n 's/^MCP endpoint: *//p' ~/packaged)\n"
        "/usr/bin/holdfast call ticker price symbol=ACME --url $url; kill $hub; wait $hub\n",
    )
    assert said.startswith("ACME: ")
    debian.does(
        "apt-get remove -y -q holdfast-mcp && ! test -e /usr/bin/holdfast && ! test -e /opt/holdfast", user="root"
    )
