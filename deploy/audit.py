"""Looks the pinned dependencies up among the published advisories: ``python deploy/audit.py [LOCK …]``.

The exit code is 1 if an advisory is known for a pinned version. Where the service cannot be reached, the audit is
skipped, and says so: a machine without the network must not fail for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = (
    "requirements-dev.lock",
    "deploy/docker/requirements.lock",
    "deploy/docker/build.lock",
    "deploy/docker/tools.lock",
)
SECONDS = 300.0
"""The service is asked for each package, one after another."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the locks; returns the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("locks", nargs="*", type=Path, default=[ROOT / lock for lock in LOCKS])
    options.add_argument("--osv-url", help="another service with the interface of OSV")
    given = options.parse_args(arguments)
    found = 0
    for lock in given.locks:
        audit = _audit(lock, given.osv_url)
        if isinstance(audit, str):
            print(f"{lock.name}: skipped, the advisories cannot be read: {audit}")  # noqa: T201 - a program
            continue
        lines = [*_findings(audit)]
        found += len(lines)
        skipped = [str(one["name"]) for one in audit if "skip_reason" in one]
        print("\n".join([f"{lock.name}: {len(audit) - len(skipped)} packages, {len(lines)} advisories", *lines]))  # noqa: T201 - as above
        if skipped:
            print(f"  not looked up: {', '.join(skipped)}")  # noqa: T201 - as above
    return 1 if found else 0


def _audit(lock: Path, service: str | None) -> list[dict[str, object]] | str:
    """What is known of each package; the reason if that cannot be found out."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--format", "json"]
    command += ["--progress-spinner", "off", "--disable-pip", "--no-deps", "--requirement", str(lock)]
    command += ["--osv-url", service] if service is not None else []
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603 - ours
        audit: list[dict[str, object]] = json.loads(ran.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS:g} s"
    except (ValueError, KeyError):
        return (ran.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
    return audit


def _findings(audit: Sequence[dict[str, object]]) -> Iterator[str]:
    for one in audit:
        known = one.get("vulns")
        for advisory in known if isinstance(known, list) else ():
            fixed = ", ".join(advisory.get("fix_versions") or ()) or "no version yet"
            yield f"  {one['name']} {one['version']}: {advisory['id']}, fixed in {fixed}"


if __name__ == "__main__":
    sys.exit(main())
