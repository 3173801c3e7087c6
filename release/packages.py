"""Packages of the release for other installers: a Homebrew formula and a Debian package, from the image's lock.

The lock (``deploy/docker/requirements.lock``) has the exact versions and the hashes of their files. The formula names
the source of each, found in the package index by its hash. The Debian package contains them, in an environment of its
own below ``/opt/holdfast``: it changes no Python of the system.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from packaging.markers import Marker

from deploy.sbom import LockedPackage, read_lock

__all__ = ["Source", "debian", "formula", "read_index", "sources"]

INDEX = "https://pypi.org/simple"
WITHOUT_SOURCE = frozenset({"cel-expr-python"})
"""Packages of an extra that are published as wheels alone; the formula does without that extra."""

OPT = Path("opt/holdfast")
"""Where the Debian package is, from the root of the file system."""

WAIT_SECONDS = 60
BUILD_SECONDS = 900
"""A slow network has the wheels in less."""

_FILE = re.compile(r'<a href="(?P<url>https://[^"#]+\.tar\.gz)#sha256=(?P<sha256>[0-9a-f]{64})"')


@dataclass(frozen=True)
class Source:
    """The sdist of a package: its address and its hash."""

    name: str
    url: str
    sha256: str


def sources(lock: Path, index: Callable[[str], str], *, platforms: Iterable[str] = ("darwin", "linux")) -> list[Source]:
    """The sources of what a lock pins, for these platforms. ``index`` gives the page of a package."""
    found = []
    for package in read_lock(lock):
        if package.name in WITHOUT_SOURCE or not any(_is_for(package, platform) for platform in platforms):
            continue
        files = [one for one in _FILE.finditer(index(package.name)) if one["sha256"] in package.hashes]
        if not files:
            raise LookupError(f"the index has no source of {package.name} {package.version} with a hash of the lock")
        found.append(Source(package.name, files[0]["url"], files[0]["sha256"]))
    return found


def _is_for(package: LockedPackage, platform: str) -> bool:
    around = {"sys_platform": platform, "platform_system": platform.capitalize(), "python_full_version": "3.13.0"}
    return not package.marker or Marker(package.marker).evaluate({**around, "python_version": "3.13"})


def read_index(name: str) -> str:
    """The page of a package in the package index."""
    with urlopen(f"{INDEX}/{name}/", timeout=WAIT_SECONDS) as answer:  # noqa: S310 - https
        return str(answer.read().decode())


FORMULA = """\
# Rendered by `make release` from deploy/docker/requirements.lock. It was not installed by Homebrew: there is none here.
class Holdfast < Formula
  include Language::Python::Virtualenv

  desc "{description}"
  homepage "{homepage}"
  url "{url}"
  sha256 "{sha256}"
  license "Apache-2.0"

  depends_on "pkgconf" => :build
  depends_on "rust" => :build
  depends_on "openssl@3"
  depends_on "python@3.13"

{resources}
  def install
    virtualenv_install_with_resources
    generate_completions_from_executable(bin/"holdfast", "completion")
  end

  service do
    run [opt_bin/"holdfast", "serve"]
    keep_alive true
    log_path var/"log/holdfast.log"
    error_log_path var/"log/holdfast.log"
  end

  test do
    (testpath/"mcp.json").write '{{"mcpServers": {{}}}}'
    assert_match version.to_s, shell_output("#{{bin}}/holdfast --version")
    system bin/"holdfast", "config", "show", "--config", testpath/"mcp.json"
  end
end
"""

RESOURCE = """\
  resource "{name}" do
    url "{url}"
    sha256 "{sha256}"
  end
"""


def formula(sdist: Path, resources: Sequence[Source], *, description: str, homepage: str) -> str:
    """The formula. The address of the sdist is the one that it has once it is published."""
    return FORMULA.format(
        description=description,
        homepage=homepage,
        url=f"https://files.pythonhosted.org/packages/source/h/holdfast-mcp/{sdist.name}",
        sha256=hashlib.sha256(sdist.read_bytes()).hexdigest(),
        resources="\n".join(RESOURCE.format(name=one.name, url=one.url, sha256=one.sha256) for one in resources),
    )


CONTROL = """\
Package: holdfast-mcp
Version: {version}
Architecture: {architecture}
Maintainer: Holdfast <{homepage}>
Homepage: {homepage}
Section: net
Priority: optional
Depends: python3 (>= {python}), python3 (<< {next_python}), python3-venv, ca-certificates
Installed-Size: {size}
Description: {description}
 One MCP endpoint for all your MCP servers, a status page, a doctor that says
 why a server does not connect, and a Python library. It is installed below
 /opt/holdfast with all that it needs, and changes no Python of the system.
"""


def debian(wheel: Path, lock: Path, into: Path, *, about: dict[str, str], python: str = "/usr/bin/python3") -> Path:
    """Build the Debian package for the Python of this machine. ``about`` has version, description and homepage."""
    tree = into / "debian"
    shutil.rmtree(tree, ignore_errors=True)
    place = tree / OPT
    _run(python, "-m", "venv", "--without-pip", place)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "bin/python",
        "install",
        "--quiet",
        "--no-deps",
    ]
    _run(*pip, "--only-binary", ":all:", "--require-hashes", "-r", lock)
    _run(*pip, wheel)
    _settle(tree)
    minor = int(_run(python, "-c", "import sys; print(sys.version_info[1])"))
    size = sum(file.lstat().st_size for file in tree.rglob("*")) // 1024
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        CONTROL.format(
            architecture=_run("dpkg", "--print-architecture"),
            python=f"3.{minor}",
            next_python=f"3.{minor + 1}",
            size=size,
            **about,
        )
    )
    made = into / f"holdfast-mcp_{about['version']}_python3.{minor}_{_run('dpkg', '--print-architecture')}.deb"
    _run("dpkg-deb", "--root-owner-group", "-Zxz", "-z2", "--build", tree, made)  # more takes minutes
    shutil.rmtree(tree)
    return made


def _settle(tree: Path) -> None:
    """Write the paths that the environment will have, and what a package has beside its program."""
    place = tree / OPT
    for script in (place / "bin").iterdir():
        if script.name in ("holdfast", "holdfast-mcp"):
            script.write_text(script.read_text().replace(str(place), f"/{OPT}"))
        elif not script.name.startswith("python"):
            script.unlink()  # commands of what Holdfast uses, and scripts that activate the environment
    settings = place / "pyvenv.cfg"
    kept = [line for line in settings.read_text().splitlines() if not line.startswith("command")]
    settings.write_text("\n".join(kept) + "\n")
    (library,) = place.glob("lib/python*")
    compiled: list[str | Path] = [
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        tree,
        "-p",
        "/",
    ]
    _run(place / "bin/python", *compiled, library)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/holdfast").symlink_to(f"/{OPT}/bin/holdfast")
    completions = tree / "usr/share/bash-completion/completions"
    completions.mkdir(parents=True)
    (completions / "holdfast").write_text(_run(place / "bin/python", "-m", "holdfast", "completion", "bash") + "\n")
    documents = tree / "usr/share/doc/holdfast-mcp"
    documents.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "LICENSE", documents / "copyright")
    for folder in (tree, *(one for one in tree.rglob("*") if one.is_dir() and not one.is_symlink())):
        folder.chmod(0o755)


def _run(*command: str | Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        list(map(str, command)), env=environ, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"{command} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout.strip()
