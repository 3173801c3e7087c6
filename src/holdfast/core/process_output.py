"""The most telling line of a process's output: chosen by recognisers, not by its position (DOC-9).

A package manager ends with the path of a log, a usage text follows the error that caused it, and a traceback has its
reason at the end or at the beginning. One function reads them for calls, status, logs and doctor. The output is text
of a process: it decides which line people read and which advice they get, never whether a failure is permanent.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["OutputKind", "ProcessOutput", "read_output"]

LONGEST = 16 * 1024
"""How many characters at the end of an output are read. Patterns over more cost time."""

LONGEST_LINE = 1000
"""How many characters of a line are read."""

MOST_VARIABLES = 3


class OutputKind(Enum):
    """What an output is about."""

    VARIABLE = "variable"
    """A variable, key or token is missing."""
    PACKAGE = "package"
    """A package manager found no such package, version or executable."""
    MODULE = "module"
    """Python or Node has no such module."""
    DOCKER = "docker"
    ERROR = "error"
    """An error that none of the others recognised."""
    OTHER = "other"
    """Nothing was recognised: the line is the last one."""


@dataclass(frozen=True, kw_only=True)
class ProcessOutput:
    """What an output says."""

    line: str = ""
    """The most telling line; empty for an empty output."""
    kind: OutputKind = OutputKind.OTHER
    subject: str = ""
    """The package or the module that is missing."""
    variables: tuple[str, ...] = ()
    """The environment variables that it asks for."""


def read_output(text: str) -> ProcessOutput:
    """Find the most telling line of what a process wrote, on stderr or on stdout."""
    lines = [line[:LONGEST_LINE].rstrip() for line in text[-LONGEST:].splitlines() if line.strip()]
    for recognise in _RECOGNISERS:
        if (found := recognise(lines)) is not None:
            return found
    told = [line for line in lines if not _BORING.search(line)]
    return ProcessOutput(line=_clean((told or lines or [""])[-1]))


# The recognisers, the most specific first. Each gets the lines that are not empty.

_NPM = re.compile(r"^npm (?:error|ERR!) ?(.*)$")
_NPM_CODE = re.compile(r"^code (E[A-Z0-9_]+)$")
_NPM_PACKAGE = re.compile(r"'([^']+?)(?:@[^'@]*)?'|\bfor ((?:@[\w.-]+/)?[\w.-]+)")


def _npm(lines: Sequence[str]) -> ProcessOutput | None:
    said = [found[1].strip() for line in lines if (found := _NPM.match(line))]
    code = next((found[1] for line in said if (found := _NPM_CODE.match(line))), "")
    if not code:
        return None
    details = (re.sub(r"^(?:E?404|notarget|[a-z]+)\b\s*", "", line) for line in said if not _NPM_CODE.match(line))
    detail = next((line for line in details if line and not _NPM_NOISE.search(line)), "")
    missing = code in ("E404", "ETARGET")
    package = _NPM_PACKAGE.search(detail) if missing else None
    return ProcessOutput(
        line=f"npm error code {code}" + (f": {_clean(detail)}" if detail else ""),
        kind=OutputKind.PACKAGE if missing else OutputKind.ERROR,
        subject=(package[1] or package[2]) if package is not None else "",
    )


_NPM_NOISE = re.compile(r"^Not Found - GET|complete log of this run|^Note that|^tarball, folder|^In most cases")

_UV_PACKAGE = re.compile(r"Because ([\w.@/-]+) was not found in the package registry")
_UV_EXECUTABLE = re.compile(r"An executable named `([^`]+)` is not provided by package")
_PIP_PACKAGE = re.compile(r"^ERROR: No matching distribution found for ([\w.\[\]=<>~!-]+)")


def _python_packages(lines: Sequence[str]) -> ProcessOutput | None:
    for pattern in (_UV_PACKAGE, _UV_EXECUTABLE, _PIP_PACKAGE):
        for line in lines:
            if found := pattern.search(line):
                said = _clean(re.sub(r"^\s*(?:cause:|╰─▶|×)\s*", "", line))
                return ProcessOutput(line=said, kind=OutputKind.PACKAGE, subject=found[1])
    return None


_DOCKER = re.compile(
    r"^docker: |Error response from daemon|Cannot connect to the Docker daemon|^Error: .*\b(?:podman|container)\b"
)


def _docker(lines: Sequence[str]) -> ProcessOutput | None:
    line = next((line for line in lines if _DOCKER.search(line)), None)
    return ProcessOutput(line=_clean(line), kind=OutputKind.DOCKER) if line is not None else None


_EXCEPTION = re.compile(
    r"^[\s|+-]*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)?)(?::\s(.*))?$"
)
_GROUP = re.compile(r"\(\d+ sub-exceptions?\)$")
_PYTHON_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_KEY_ERROR = re.compile(r"^KeyError: '([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)'$")


def _python(lines: Sequence[str]) -> ProcessOutput | None:
    """The exception at the end of the last traceback; of a group, the first one inside."""
    starts = [at for at, line in enumerate(lines) if "Traceback (most recent call last):" in line]
    if not starts:
        return None
    after = [line.strip(" |+-") for line in lines[starts[-1] + 1 :] if _EXCEPTION.match(line)]
    line = next((one for one in after if one and not _GROUP.search(one)), "")
    if not line:
        return None
    if module := _PYTHON_MODULE.search(line):
        return ProcessOutput(line=_clean(line), kind=OutputKind.MODULE, subject=module[1])
    if key := _KEY_ERROR.match(line):
        return ProcessOutput(line=_clean(line), kind=OutputKind.VARIABLE, variables=(key[1],))
    return _asking(line, []) or ProcessOutput(line=_clean(line), kind=OutputKind.ERROR)


_NODE = re.compile(r"^(?:Uncaught |\[?)?(?:[A-Z]\w*)?Error(?: \[\w+\])?: \S")
_NODE_FRAME = re.compile(r"^\s+at ")
_NODE_MODULE = re.compile(r"Cannot find (?:module|package) '([^']+)'")


def _node(lines: Sequence[str]) -> ProcessOutput | None:
    """The message before the frames of a Node stack."""
    if not any(_NODE_FRAME.match(line) for line in lines):
        return None
    line = next((line for line in lines if _NODE.match(line)), None)
    if line is None:
        return None
    if module := _NODE_MODULE.search(line):
        return ProcessOutput(line=_clean(line), kind=OutputKind.MODULE, subject=module[1])
    return _asking(line, []) or ProcessOutput(line=_clean(line), kind=OutputKind.ERROR)


def _caught(lines: Sequence[str]) -> ProcessOutput | None:
    """A missing module or key, where a program caught the exception and printed its text alone."""
    for line in lines:
        if key := _KEY_ERROR.match(line.strip()):
            return ProcessOutput(line=_clean(line), kind=OutputKind.VARIABLE, variables=(key[1],))
        if found := _PYTHON_MODULE.search(line) or _NODE_MODULE.search(line):
            return ProcessOutput(line=_clean(line), kind=OutputKind.MODULE, subject=found[1])
    return None


_ERROR = re.compile(r"(?i)^(?:[\w.@/-]+: )?\W?(?:fatal|error)\b ?(?:\[\w+\])?:? \S")


def _error(lines: Sequence[str]) -> ProcessOutput | None:
    """The first line that begins as an error; a usage text may follow it."""
    for at, line in enumerate(lines):
        if _ERROR.match(line) and not _BORING.search(line):
            return _asking(line, lines[at + 1 :]) or ProcessOutput(line=_clean(line), kind=OutputKind.ERROR)
    return None


_VARIABLE = re.compile(r"(?<![\w$./-])([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w/-])")
_LACKS = re.compile(
    r"(?i)not (?:set|found|defined|provided|given|configured|specified)|missing|must|require|need|\bset\b|please"
    r"|undefined|unset|empty|\bno\b.*\bprovided|\bor pass\b"
)
_USAGE = re.compile(r"(?i)\s*(?:usage|options|commands|environment variables)\b")
_NOT_VARIABLES = re.compile(r"^(?:ERR|E|UV|NODE|HTTP|SIG|MODULE)_")


def _variables(lines: Sequence[str]) -> ProcessOutput | None:
    for at, line in enumerate(lines):
        if not _BORING.search(line) and any(_named(line)):
            return _asking(line, lines[at + 1 :])
    return None


def _asking(line: str, following: Sequence[str]) -> ProcessOutput | None:
    """A line that asks for variables, itself or in the lines that follow; a usage text names too many."""
    said = [line, *itertools.takewhile(lambda one: not _USAGE.match(one), following)]
    wanted = list(dict.fromkeys(name for one in said for name in _named(one)))
    if not wanted:
        return None
    return ProcessOutput(line=_clean(line), kind=OutputKind.VARIABLE, variables=tuple(wanted[:MOST_VARIABLES]))


def _named(line: str) -> Iterator[str]:
    if _LACKS.search(line):
        yield from (name for name in _VARIABLE.findall(line) if not _NOT_VARIABLES.match(name))


_WORDS = re.compile(
    r"(?i)\b(?:errors?|failed|failure|cannot|could not|can't|not found|denied|refused|fatal|exception|required|missing"
    r"|invalid|unable|unknown|no such)\b"
)


def _suspicious(lines: Sequence[str]) -> ProcessOutput | None:
    line = next((line for line in reversed(lines) if _WORDS.search(line) and not _BORING.search(line)), None)
    return ProcessOutput(line=_clean(line), kind=OutputKind.ERROR) if line is not None else None


_BORING = re.compile(
    r"^npm (?:warn|WARN|notice)\b|complete log of this run|^Node\.js v\d|^\s+at |^\s*\^+\s*$|^\s{2,}-{1,2}\w"
    r"|^Installed \d+ packages?|^(?:WARNING|warning): "
)

_RECOGNISERS: tuple[Callable[[Sequence[str]], ProcessOutput | None], ...] = (
    _npm,
    _python_packages,
    _docker,
    _python,
    _node,
    _caught,
    _error,
    _variables,
    _suspicious,
)


def _clean(line: str) -> str:
    return " ".join(line.split())
