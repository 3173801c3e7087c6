"""Builds a release, tries it, and prints the tag to set: ``python -m release``.

Each step says what it saw. The first that fails ends it with code 1. A Debian package is made where
dpkg is. Nothing is published and no tag is set.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from release.distributions import ROOT, NotReleasable, build, differences, tracked, try_out, version_of
from release.packages import debian, formula, read_index, sources

DIST = ROOT / "dist"
LOCK = ROOT / "deploy/docker/requirements.lock"
MCPB = "@anthropic-ai/mcpb@2.1.2"
MCPB_SECONDS = 300
"""npx downloads it first."""


def main() -> None:
    """Make everything, into an empty `dist/`."""
    version = version_of()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = {"version": version, "description": project["description"], "homepage": project["urls"]["Repository"]}
    _check_sources(version)
    shutil.rmtree(DIST, ignore_errors=True)
    made = build(DIST)
    sdist, wheel = made.listed()
    if wrong := differences(tracked(), sdist, wheel):
        raise NotReleasable("\n".join(wrong))
    _say(f"{made.sdist.name}: {len(sdist)} files; {made.wheel.name}: {len(wheel)} files, and the same from the sdist")
    _say("both hold what is under version control, and nothing else")
    for file in (made.wheel, made.sdist):
        _say(f"{file.name} in an empty environment: {try_out(file)}")
    _bundle(version)
    text = formula(made.sdist, sources(LOCK, read_index), description=_brief(project), homepage=about["homepage"])
    (DIST / "holdfast.rb").write_text(text)
    _say(f"holdfast.rb: {text.count('resource ')} resources with the hashes of the lock; not run by Homebrew")
    if shutil.which("dpkg-deb"):
        package = debian(made.wheel, LOCK, DIST, about=about)
        _say(f"{package.name}: {package.stat().st_size // 1_000_000} MB")
    else:
        _say("no Debian package: dpkg-deb is not here")
    sums = "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted(DIST.iterdir()))
    (DIST / "SHA256SUMS").write_text(sums)
    print(f"\n{sums}\nAll is in dist/. If that is the release, set the tag; the workflow `release` does the rest:\n")
    print(f"  git tag -a v{version} -m 'Holdfast {version}' && git push origin v{version}")


def _check_sources(version: str) -> None:
    """A release is made from a commit, and the changelog says what is in it."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    if changed.stdout.strip():
        raise NotReleasable(f"commit or remove first:\n{changed.stdout.rstrip()}")
    if f"\n## [{version}] - " not in (ROOT / "CHANGELOG.md").read_text():
        raise NotReleasable(f"CHANGELOG.md has no section `## [{version}] - DATE`")


def _bundle(version: str) -> None:
    """The bundle for Claude Desktop, packed and checked by its own tool."""
    target = DIST / f"holdfast-{version}.mcpb"
    npx = Path(sys.executable).with_name("npx")
    bundle = ROOT / "release/mcpb"
    for command in (["validate", str(bundle / "manifest.json")], ["pack", str(bundle), str(target)]):
        ran = subprocess.run(
            [npx, "--yes", MCPB, *command], capture_output=True, text=True, timeout=MCPB_SECONDS, check=False
        )
        if ran.returncode:
            raise NotReleasable(f"mcpb {command[0]}:\n{ran.stdout}{ran.stderr}")
    _say(f"{target.name}: valid, and packed; not opened in Claude Desktop")


def _brief(project: dict[str, str]) -> str:
    """Homebrew wants a description without a full stop, of at most 80 characters."""
    brief = project["description"].partition(",")[0].rstrip(".")
    return f"{brief[0].upper()}{brief[1:]}"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _say(text: str) -> None:
    print(f"ok: {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (NotReleasable, LookupError, RuntimeError) as exc:
        sys.exit(f"error: {exc}")
