"""Runs mutants: each in a copy of the package, against those of the nearest tests that execute its line.

The tests run once without a slip and with coverage, which tells which of them execute a line. A mutant on a line that
none of them executes is not run: it survived. A slip is killed by a failing test, or by the time limit.

Why a runner of our own. Two tools were tried on ``core/breaker.py`` with its own tests (17 November 2026, a busy
machine). mutmut 3.8 runs tests in forks of one process. With our session fixtures, which keep a warm process and watch
for leaks, each mutant whose line was covered ended at mutmut's time limit: 9 of 9, nothing was learned; and it draws no
sample of its 320. cosmic-ray 8.7 works, changes the sources in place and runs the whole test command for each of 803
mutants: 3 in 75 s. This one runs only the tests that execute the line, on copies, in parallel, for a seeded sample.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from coverage import CoverageData

from tests.mutants.change import Site, changed

__all__ = ["Group", "Mutant", "Outcome", "Runner", "groups_in"]

SLOWER: Final = 4
"""How many times as long as without a slip the tests of a group may take: a mutant that hangs is one that is killed."""

START_SECONDS: Final = 60.0
"""Time to start, in addition: other mutants run beside it."""

PASSED, NO_TESTS = 0, 5
"""Exit codes of pytest. Every other one kills: also that of a package that cannot be imported any more."""

Result = Literal["killed", "timed out", "survived", "not executed"]


@dataclass(frozen=True)
class Group:
    """Some sources and the tests that are nearest to them, as paths or patterns."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    processes: bool = False
    """Whether tests run the sources in other processes, where coverage sees no line: then all tests are run."""

    def files(self, root: Path) -> list[Path]:
        found = [file for one in self.sources for file in sorted(root.glob(one))]
        return [deeper for one in found for deeper in (sorted(one.rglob("*.py")) if one.is_dir() else [one])]

    def nearest(self, root: Path) -> list[str]:
        """The tests' paths; a pattern without a match is an error, so that the list follows the tree."""
        found = []
        for one in self.tests:
            matches = sorted(root.glob(one))
            if not matches:
                raise FileNotFoundError(f"{one}: there are no such tests")
            found += [str(match.relative_to(root)) for match in matches]
        return found


@dataclass(frozen=True)
class Mutant:
    """A slip in a file of a group."""

    group: Group
    file: Path
    site: Site


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; ``tests`` is the number that execute its line."""

    mutant: Mutant
    result: Result
    tests: int

    @property
    def killed(self) -> bool:
        return self.result in ("killed", "timed out")

    def __str__(self) -> str:
        where = os.path.relpath(self.mutant.file)
        return f"{self.result}: {where}:{self.mutant.site.line}: {self.mutant.site.what} ({self.tests} tests)"


@dataclass(frozen=True)
class _Baseline:
    """The tests of a group without a slip: which execute a line, and how long all of them take."""

    executed: dict[Path, dict[int, list[str]]]
    seconds: float


def groups_in(file: Path) -> list[Group]:
    """The groups of a list like ``packages.toml``."""
    said = tomllib.loads(file.read_text())
    return [
        Group(name, tuple(one["sources"]), tuple(one["tests"]), one.get("processes", False))
        for name, one in said.items()
    ]


class Runner:
    """Copies of the sources, one for each job; they are gone when it is left."""

    def __init__(self, root: Path, *, jobs: int = 1, source: str = "src") -> None:
        self._root = root
        self._source = root / source
        self._jobs = jobs
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self._compiled = self._folder / "compiled"
        self._copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copy = self._folder / str(number)
            shutil.copytree(self._source, copy / source)
            self._copies.put(copy / source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, mutants: list[Mutant]) -> Iterator[Outcome]:
        """The outcome of each mutant as it comes, group by group."""
        for group in dict.fromkeys(mutant.group for mutant in mutants):
            baseline = self._baseline(group)
            with ThreadPoolExecutor(self._jobs) as pool:
                waiting = [pool.submit(self._try, one, baseline) for one in mutants if one.group == group]
                for done in as_completed(waiting):
                    yield done.result()

    def _baseline(self, group: Group) -> _Baseline:
        copy = self._copies.get()
        data = self._folder / "coverage"
        data.unlink(missing_ok=True)
        started = time.monotonic()
        parallel = ["-n", str(self._jobs)] if self._jobs > 1 else []
        options = [*parallel, f"--cov={copy}", "--cov-context=test", "--cov-report=", *group.nearest(self._root)]
        ended = self._pytest(copy, *options, COVERAGE_FILE=str(data), PYTHONDONTWRITEBYTECODE="")
        seconds = time.monotonic() - started
        self._share_compiled(copy)
        self._copies.put(copy)
        if ended.returncode != PASSED:
            raise RuntimeError(f"the tests of {group.name} fail without a slip:\n{ended.stdout}")
        found = CoverageData(basename=str(data))
        found.read()
        executed = {
            self._source / Path(file).relative_to(copy): found.contexts_by_lineno(file)
            for file in found.measured_files()
            if Path(file).is_relative_to(copy)
        }
        return _Baseline(executed, seconds)

    def _share_compiled(self, copy: Path) -> None:
        """Give the compiled modules of one copy to the others: to compile them takes most of the time of a mutant."""
        of_it = self._compiled / copy.relative_to("/")
        for other in self._folder.glob(f"[0-9]*/{copy.name}"):
            if other != copy and of_it.exists():
                shutil.copytree(of_it, self._compiled / other.relative_to("/"), dirs_exist_ok=True)

    def _try(self, mutant: Mutant, baseline: _Baseline) -> Outcome:
        tests = _tests_of(mutant, baseline)
        count = len(tests)
        if mutant.group.processes:  # a line that one test executes here may be executed by another one elsewhere
            seen = {test.partition("::")[0] for test in tests}
            tests = sorted(mutant.group.nearest(self._root), key=lambda file: file not in seen)
        if not tests:
            return Outcome(mutant, "not executed", 0)
        copy = self._copies.get()
        named = copy.parent / "tests"
        named.write_text("\n".join(tests))
        file = copy / mutant.file.relative_to(self._source)
        whole, times = file.read_text(), file.stat()
        try:
            slip = changed(whole, mutant.site)
            compile(slip, mutant.file, "exec", dont_inherit=True)  # else every test would kill it
            file.write_text(slip)
            seconds = START_SECONDS + SLOWER * baseline.seconds * self._jobs
            ended = self._pytest(copy, "-x", f"@{named}", seconds=seconds)
        except subprocess.TimeoutExpired:
            return Outcome(mutant, "timed out", count)
        finally:
            file.write_text(whole)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # its compiled module is valid again
            self._copies.put(copy)
        if ended.returncode == NO_TESTS:
            raise RuntimeError(f"no test was run:\n{ended.stdout}")
        return Outcome(mutant, "survived" if ended.returncode == PASSED else "killed", count)

    def _pytest(
        self, copy: Path, *arguments: str, seconds: float | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run tests on a copy of the sources, which is found before those that are installed."""
        # To import schemathesis takes a second, and no package of the list needs it.
        without = ["-p", "no:cacheprovider", "-p", "no:schemathesis"]
        command = [sys.executable, "-m", "pytest", "-q", *without, *arguments]
        # What is compiled without a slip serves every mutant; the compiled module of a mutant serves no other.
        settings = {
            "PYTHONPATH": str(copy),
            "PYTHONPYCACHEPREFIX": str(self._compiled),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        }
        with subprocess.Popen(
            command,
            cwd=self._root,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except BaseException:
                os.killpg(process.pid, 9)
                raise
        return subprocess.CompletedProcess(command, process.returncode, output)


def _tests_of(mutant: Mutant, baseline: _Baseline) -> list[str]:
    """The tests that execute the line, by their ids; where a shared fixture executes it, all tests of that file.

    Those of the file with the source's name come first: one of them most often kills, and the rest need not run.
    """
    contexts = baseline.executed.get(mutant.file, {}).get(mutant.site.line, [])
    found: dict[str, None] = {}
    for context in contexts:
        test, _, phase = context.rpartition("|")
        if test:
            found[test if phase == "run" else test.partition("::")[0]] = None
    tests = [one for one in found if "::" not in one or one.partition("::")[0] not in found]
    return sorted(tests, key=lambda one: (f"test_{mutant.file.stem}" not in one, one.partition("::")[0]))
