"""Reads what a process printed before it ended: its most telling line, and what it needs.

The output never decides whether or how a server failed; its exit code does. It decides only which line is shown and
which advice is given. Hub, page, calls and doctor ask here, so that they say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Need", "NeedKind", "hint_for", "need_of", "telling_line"]

NeedKind: TypeAlias = Literal["variable", "package", "runtime", "python_module", "node_module", "docker", "image"]

_VARIABLE = re.compile(r"(?<![\w$./-])([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w/-])")
_LACKS = re.compile(
    r"(?i)not (?:set|found|defined|provided|given|configured|specified|present)|missing|must|require|need|\bset\b"
    r"|please|KeyError|undefined|unset|empty|\bno\b.{0,60}\b(?:provided|given|configured|specified|found|set)\b"
)
_NOT_VARIABLES = re.compile(r"^(?:ERR|E|UV|NODE|HTTP|SIG|MODULE)_")
_PYTHON_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NODE_MODULE = re.compile(r"Cannot find (?:module|package) '([^']+)'")
_NO_PACKAGE = re.compile(
    r"npm (?:error|ERR!) (?:code )?E?404[^\n]{0,200}?'([^'\n]+?)(?:@[^'@\n]*)?' is not in this registry"
    r"|Because ([\w.@/-]+) was not found in the package registry"
    r"|Could not find a version that satisfies the requirement ([\w.-]+)"
)
_NEEDS_RUNTIME = re.compile(
    r"(?i)\b(node|python)(?:\.js)?\b[^\n]{0,40}?((?:>=|~=|==|>|\^)\s?v?\d+(?:\.\d+)*)"
    r"|\b(?:requires?|needs?|wants?)\s+(?:at least\s+)?(node|python)(?:\.js)?\s+(?:version\s+)?(v?\d+(?:\.\d+)*)"
)
_OLD_NODE = re.compile(
    r"ERR_REQUIRE_ESM|No such built-in module: node:|Cannot find module 'node:"
    r"|Unexpected token '(?:\?\.|\?\?=?|\|\|=|&&=)'|\b(?:fetch|structuredClone) is not defined"
)
_OLD_PYTHON = re.compile(
    r"No module named 'tomllib'"
    r"|cannot import name '\w+' from '(?:typing|types|asyncio|enum|datetime|collections(?:\.abc)?)'"
)
"""Errors of an old runtime about a program for a newer one."""

_NO_DOCKER = re.compile(
    r"(?i)cannot connect to the docker daemon|error during connect:|permission denied while trying to connect to the "
    r"docker daemon|docker daemon is not running"
)
_NO_IMAGE = re.compile(
    r"(?i)(?:pull access denied for|manifest for|failed to resolve reference \"?)\s?([\w./:@-]+)"
    r"|repository ([\w./:-]+) does not exist"
)

_IS_NAME = re.compile(r"[@\w]")
"""A name from a foreign output must not be an option of the command that advice puts it into."""

_NOISE = re.compile(
    r"(?i)^(?:npm (?:error|err!|warn|notice)(?:$|.*(?:complete log of this run|_logs/|npm notice|A complete log)).*"
    r"|npm (?:error|err!)\s*$|node\.js v\d.*|at .+|\^+|[\]})(;,\s]+|\.{3,}|-{3,}|={3,}|traceback \(most recent.*"
    r"|file \".*\", line \d+.*|usage:.*|options:.*|for more information.*|(?:hint|help):.*|run .*--help.*"
    r"|.*\bdeprecat.*|installed \d+ packages? in .*|\(use `?node --trace.*|see '?docker run --help'?\.?)$"
)
"""Lines that end many outputs and say nothing about the cause."""

_ERROR = re.compile(
    r"(?i)^(?:\w+(?:\.\w+)*(?:error|exception)\b|(?:fatal|error|panic|npm error code|npm err! code|docker)\b)"
    r"|\berror:"
)
"""How a line begins that names a cause."""


class Need(NamedTuple):
    """What a process asked for and did not get."""

    kind: NeedKind
    names: tuple[str, ...] = ()
    """Variables, or the package, module, image or runtime."""
    version: str = ""
    """The version of the runtime, if it is named."""
    line: str = ""
    """The line that says so."""


def need_of(text: str) -> Need | None:
    """What the output says that the process needs; None if it does not say."""
    for recognise in (_docker, _package, _runtime, _module, _variables):
        if (found := recognise(text)) is not None:
            return found
    return None


def telling_line(text: str) -> str:
    """The line that says most about the cause: of a known error, else an error line, else the last one with content."""
    if (need := need_of(text)) is not None and need.line:
        return need.line
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    useful = [line for line in lines if not _NOISE.match(line)]
    errors = [line for line in useful if _ERROR.search(line)]
    # A traceback ends with its error; other programs name the cause first and explain it then.
    if errors:
        return errors[-1] if "Traceback (most recent call last)" in text else errors[0]
    return (useful or lines or [""])[-1]


def hint_for(need: Need) -> str:
    """What to do about a need, without knowledge of the server's definition."""
    name = need.names[0] if need.names else ""
    match need.kind:
        case "variable":
            named = " and ".join(f"`{one}`" for one in need.names[:3])
            return f"its output names {named}: give {'it' if len(need.names) == 1 else 'them'} a value in `env`"
        case "package":
            return f"the registry has no package `{name}`: correct the name in `args`"
        case "runtime":
            wanted = f"{name.title()} {need.version}" if need.version else f"a newer {name.title()}"
            return f"install {wanted}, and put it first on PATH or write its full path into `command`"
        case "python_module":
            return f"install the module `{name}` for the Python that runs it"
        case "node_module":
            return f"install the module `{name}` in the server's folder, or build the server"
        case "docker":
            return "start Docker, or allow this user to use it"
        case "image":
            return f"correct the name of the image `{name}` in `args`, or log in to its registry: docker login"


def _docker(text: str) -> Need | None:
    if found := _NO_DOCKER.search(text):
        return Need("docker", line=_line_at(text, found.start()))
    if (found := _NO_IMAGE.search(text)) and _IS_NAME.match(found[1] or found[2]):
        return Need("image", (found[1] or found[2],), line=_line_at(text, found.start()))
    return None


def _package(text: str) -> Need | None:
    found = _NO_PACKAGE.search(text)
    name = (found[1] or found[2] or found[3]) if found is not None else ""
    if found is None or not _IS_NAME.match(name):
        return None
    return Need("package", (name,), line=_line_at(text, found.start()))


def _runtime(text: str) -> Need | None:
    if found := _NEEDS_RUNTIME.search(text):
        version = (found[2] or found[4]).replace(" ", "")
        return Need("runtime", ((found[1] or found[3]).lower(),), version, _line_at(text, found.start()))
    for pattern, name in ((_OLD_NODE, "node"), (_OLD_PYTHON, "python")):
        if found := pattern.search(text):
            return Need("runtime", (name,), line=_line_at(text, found.start()))
    return None


def _module(text: str) -> Need | None:
    if found := _PYTHON_MODULE.search(text):
        return Need("python_module", (found[1].partition(".")[0],), line=_line_at(text, found.start()))
    if (found := _NODE_MODULE.search(text)) and not found[1].startswith("-"):
        return Need("node_module", (found[1],), line=_line_at(text, found.start()))
    return None


def _variables(text: str) -> Need | None:
    asked = list(_asked_for(text))
    if not asked:
        return None
    names = tuple(dict.fromkeys(name for name, _ in asked))
    return Need("variable", names, line=asked[0][1])


def _asked_for(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if _LACKS.search(line):
            for name in _VARIABLE.findall(line):
                if not _NOT_VARIABLES.match(name):
                    yield name, line.strip()


def _line_at(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return text[start : end if end >= 0 else len(text)].strip()
