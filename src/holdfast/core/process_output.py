"""Reads what a process printed before it ended: its most telling line, and what it needs (DOC-9).

The output never decides whether or how a server failed; its exit code does. It decides only which line is shown and
which advice is given. Hub, page, calls and doctor ask here, so that they say the same. Recognisers choose the line, not
its position: a package manager ends with the path of a log, a usage text follows the error that caused it, and a
traceback has its reason at the end or at the beginning.

How it works. A recogniser reads the lines and answers with one of them, and with a ``Need`` if that line names one; or
with None, and the next one is asked (``_RECOGNISERS``). Each knows the words of one family of programs: they were taken
from outputs that these programs wrote, which are kept in ``tests/core/outputs``. A new version of a program may write
others. Then a later, more general recogniser chooses a line that is less telling: that is the worst that can happen.

The text is foreign. A name that goes from it into advice is checked (``_needs``): a person may paste the advice, and
a name that begins with a dash would be an option there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.core.messages import command_line

__all__ = ["Need", "NeedKind", "hint_for", "need_of", "says_nothing", "telling_line"]

NeedKind: TypeAlias = Literal[
    "variable",
    "argument",
    "package",
    "executable",
    "withdrawn",
    "broken_package",
    "runtime",
    "python_module",
    "python_package",
    "node_module",
    "npx_folder",
    "docker",
    "image",
    "address",
    "port",
    "certificate",
]

LONGEST = 16 * 1024
"""How many characters at the end of an output are read. Patterns over more cost time."""

LONGEST_LINE = 1000
"""How many characters of a line are read."""

MOST_LINES = 300
"""How many lines at the end of an output are read. Each is compared with all patterns, on the event loop (SEC-7)."""

MOST_VARIABLES = 3

LONGEST_LIST = 20
"""Lines after one that asks for variables in which more of them are looked for. Each is compared with those before."""

ListKind: TypeAlias = Literal["", "all", "one"]
"""What a list of variables asks for: nothing, all of them, or one."""


class Need(NamedTuple):
    """What a process asked for and did not get."""

    kind: NeedKind
    names: tuple[str, ...] = ()
    """Variables, or the package, module, image, runtime, address, port, folder of npx, or host with the certificate."""
    version: str = ""
    """The version of the runtime or of the package, if it is known."""
    others: tuple[str, ...] = ()
    """What would do instead: other variables, the executables that a package has, the package that replaces it."""
    why: str = ""
    """The reason for a withdrawal, in the words of the authors."""
    place: str = ""
    """The file in which a broken package, or another version of it, was found."""


def need_of(text: str) -> Need | None:
    """What the output says that the process needs; None if it does not say."""
    return _read(text).need


def says_nothing(text: str) -> bool:
    """Whether the output has only lines that are printed where all is well too, such as npm's warnings."""
    return not _useful([line for line in text.splitlines() if line.strip() and not _NEWS.search(line)])


def telling_line(text: str) -> str:
    """The line that says most about the cause: of a known need, else an error line, else the last one with content."""
    return _read(text).line


def hint_for(need: Need) -> str:
    """What to do about a need, without knowledge of the server's definition."""
    name = need.names[0] if need.names else ""
    other = need.others[0] if need.others else ""
    them, of = "them" if len(need.names) > 1 else "it", f" of {name}" if name else ""
    match need.kind:
        case "variable":
            instead = f" (or {' or '.join(f'`{one}`' for one in need.others)})" if need.others else ""
            return f"its output names {_all_of(need.names[:3])}{instead}: give {them} a value in `env`"
        case "argument":
            return f"its output asks for {_all_of(need.names)}: add this to `args`"
        case "runtime":
            wanted = f"{name.title()} {need.version}" if need.version else f"a newer {name.title()}"
            return f"install {wanted}, and put it first on PATH or write its full path into `command`"
        case "port":
            which = f" {name}" if name else ""
            return f"another process has its port{which}: end that process, or give this server another port"
        case "certificate":
            return f"it does not trust the certificate{of}: name the file with your certificate authorities in `env`"
        case "package" if need.version:
            gone = f"the registry has no version {need.version} of the package `{name}`"
            return f"{gone}: name another version of the server in `args`"
        case "executable":
            instead = f"`--from`, `{name}`, `{other}`" if other else "the package of a server"
            return f"the package {f'`{name}` ' if name else ''}has no such executable: write {instead} into `args`"
        case "withdrawn":
            instead = f"write `{other}` into `args`" if other else "use another server"
            return f"its authors have withdrawn the package `{name}`: {instead}"
        case "python_package":
            install = f"install `{name}{need.version}`" if need.version else "install that version"
            return f"it was written for another version of the Python package `{name}`: {install}"
        case "npx_folder":
            return f"a file is missing in what npx installed: `{command_line('doctor')}` says how to install it again"
        case _:
            return _HINTS[need.kind].format(name)


_HINTS: dict[NeedKind, str] = {
    "address": "it could not reach {}: check that it listens there, or correct the address",
    "broken_package": "this release of the package `{}` is broken: name another version of it in `args`",
    "docker": "start Docker, or allow this user to use it",
    "image": "correct the name of the image `{}` in `args`, or log in to its registry: docker login",
    "node_module": "install the module `{}` in the server's folder, or build the server",
    "package": "the registry has no package `{}`: correct the name in `args`",
    "python_module": "install the module `{}` for the Python that runs it",
}
"""What to do where the name of what is needed says all."""


def _all_of(names: Sequence[str]) -> str:
    return " and ".join(f"`{one}`" for one in names)


class _Said(NamedTuple):
    """What a recogniser found: a line, and a need if the line names one."""

    line: str
    need: Need | None = None


_Recogniser: TypeAlias = Callable[[Sequence[str]], _Said | None]


def _read(text: str) -> _Said:
    lines = [line[:LONGEST_LINE].rstrip() for line in text[-LONGEST:].splitlines() if line.strip()][-MOST_LINES:]
    lines = [line for line in list(_without_probe(lines)) or lines if not _NEWS.search(line)]
    for recognise in _RECOGNISERS:
        if (found := recognise(lines)) is not None:
            return found
    useful = _useful(lines)
    return _Said(_clean((useful or lines or [""])[-1]))


def _useful(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not _BORING.search(line)]


_NEWS = re.compile(r"^npm notice\b")
"""npm tells of its new version after a program ended: that is never the reason, also where there is no other line."""

_OF_PROBE = re.compile(r"Failed to validate request: \d+|errors\.pydantic\.dev/|input_value='server/discover'")
"""What the Python SDK 1.x writes about ``server/discover``: some 90 lines, which are about nothing of the server."""
_MORE_OF_PROBE = re.compile(r"^\s(?!.*\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)|^[A-Z]\w*Request(?:\.\w+)+$")
"""The lines after one of those: indented, or the name of a field; a new record of a log names its level."""


def _without_probe(lines: Sequence[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        inside = bool(_OF_PROBE.search(line) or (inside and _MORE_OF_PROBE.search(line)))
        if not inside:
            yield line


def _needs(
    kind: NeedKind, names: Sequence[str], line: str, version: str = "", others: Sequence[str] = (), **more: str
) -> _Said:
    """A need; a name from a foreign output must not be an option of the command that advice puts it into."""
    said = _clean(line)
    good = tuple(name for name in names if _IS_NAME.match(name))
    if names and not good:
        return _Said(said)
    instead = tuple(name for name in others if _IS_NAME.match(name))
    return _Said(said, Need(kind, good, version, instead, **more))


_IS_NAME = re.compile(r"[@\w./\[]")


# The recognisers, the most specific first. Each gets the lines that are not empty.

_NPM = re.compile(r"^npm (?:error|ERR!) ?(.*)$")
_NPM_CODE = re.compile(r"^code (E[A-Z0-9_]+)$")
_NPM_PACKAGE = re.compile(r"'([^']+?)(?:@[^'@]*)?'|\bfor ((?:@[\w.-]+/)?[\w.-]+)")
_NPM_VERSION = re.compile(r"No matching version found for \S[^@\s]*@(\S{1,60}?)\.?$")
_NPM_NOISE = re.compile(r"^Not Found - GET|complete log of this run|^Note that|^tarball, folder|^In most cases")


def _npm(lines: Sequence[str]) -> _Said | None:
    said = [found[1].strip() for line in lines if (found := _NPM.match(line))]
    code = next((found[1] for line in said if (found := _NPM_CODE.match(line))), "")
    if not code:
        none = next((line for line in said if line.startswith("could not determine executable to run")), None)
        return _needs("executable", [], f"npm error {none}") if none is not None else None
    details = (re.sub(r"^(?:E?404|notarget|[a-z]+)\b\s*", "", line) for line in said if not _NPM_CODE.match(line))
    detail = next((line for line in details if line and not _NPM_NOISE.search(line)), "")
    line = f"npm error code {code}" + (f": {_clean(detail)}" if detail else "")
    package = _NPM_PACKAGE.search(detail) if code in ("E404", "ETARGET") else None
    if unpublished := next((one for one in said if "Unpublished on " in one), ""):
        names = [found[1] or found[2] for one in said if (found := _NPM_PACKAGE.search(one))]
        return _needs("withdrawn", names[:1], f"{line}: {unpublished}", why=_clean(unpublished.removeprefix("404")))
    version = _NPM_VERSION.search(detail)
    wanted = version[1] if version is not None else ""
    return _needs("package", [package[1] or package[2]], line, wanted) if package is not None else _Said(line)


_YANKED = re.compile(
    r"(all versions of )?\b([\w.-]++)((?:[<>=!~]=?[\w.*]+,?)*+) (?:was|were) yanked(?: \(reason: (.{1,400}?)\))?"
    r"(?= and |,|\.? *$)"
)
_REPLACED = re.compile(
    r"(?i)\b(?:supers?c?e+ded|replaced|renamed|moved|migrated|switche?d?|merged) (?:by|to|with|into|in) `?([^\s`',;)]+)"
    r"|\buse `?([^\s`',;)]+)`? instead|\bin favou?r of `?([^\s`',;)]+)"
)
_PACKAGE_NAME = re.compile(r"(?:@[\w.-]+/)?[A-Za-z0-9][\w]*(?:[._-][\w]+)+")


def _withdrawn(lines: Sequence[str]) -> _Said | None:
    """A package whose authors withdrew it. The resolver tells it in a sentence of several lines."""
    places = [at for at, line in enumerate(lines) if " yanked" in line]
    said = _clean(" ".join(lines[places[0] :])) if places else ""
    found = list(_YANKED.finditer(said))
    if not found or "unsatisfiable" not in said:
        return None
    last = found[-1]
    why = last[4] or ""
    only = "" if last[1] or not last[3].startswith("==") else last[3]
    return _needs("withdrawn", [last[2]], lines[places[-1]], only, _replacement(why), why=why)


def _replacement(why: str) -> list[str]:
    """The package that a reason names as the successor."""
    found = _REPLACED.search(why)
    name = next(filter(None, found.groups()), "").rstrip(".") if found is not None else ""
    return [name] if _PACKAGE_NAME.fullmatch(name) else []


_NO_EXECUTABLE = (
    re.compile(r"An executable named `([^`]+)` is not provided by package `([^`]+)`"),
    re.compile(r"Package `()([^`]+)` does not provide any executables"),
    re.compile(r"'([^']+)' executable script not found in package '([^']+)'"),
)
_EXECUTABLES = re.compile(
    r"(?i)\bexecutables?(?: scripts?)?\b.*\b(?:available|provided)\b.*:$|^Available executable.*:$"
)
_EXECUTABLE = re.compile(r"\s*(?:- )?([\w.@+-]+)")
_BY_DEPENDENCY = re.compile(r"`uvx --from ([\w.@+-]+) ([\w.@+-]+)` instead")


def _executable(lines: Sequence[str]) -> _Said | None:
    """A package that is there, and has executables of other names."""
    for pattern, line in itertools.product(_NO_EXECUTABLE, lines):
        if found := pattern.search(line):
            start = next((at for at, one in enumerate(lines) if _EXECUTABLES.search(one)), len(lines))
            listed = itertools.takewhile(_EXECUTABLE.fullmatch, lines[start + 1 :])
            others = [name[1] for one in listed if (name := _EXECUTABLE.fullmatch(one))]
            package = found[2]
            if by := next((by for one in lines if (by := _BY_DEPENDENCY.search(one))), None):
                package, others = by[1], [by[2]]
            return _needs("executable", [package, found[1]], line, others=others)
    return None


_IMPORTED = (
    re.compile(r"Cannot find module '([^']+?/node_modules/[^']+?)' imported from (\S+)"),
    re.compile(r"Directory import '([^']+)' is not supported resolving ES modules imported from (\S+)"),
    re.compile(r"Package subpath '([^']+)' is not defined by \"exports\" in \S+ imported from (\S+)"),
)
"""How Node says that a package imports what another one does not have."""
_NO_EXPORT = re.compile(
    r"The requested module '[^']+' does not provide an export named|Named export '\w+' not found\. The requested module"
)
_FILE_LINE = re.compile(r"^file://(/\S+?):\d+$")
_NPM_FOLDER = re.compile(r"/node_modules/((?:@[\w.-]+/)?[\w.-]+?)/(?!.*/node_modules/)")
_HAS_SUFFIX = re.compile(r"\.(?:[cm]?[jt]sx?|json|node|wasm)$")


def _broken_package(lines: Sequence[str]) -> _Said | None:
    """A release that cannot work: its own import names something that the package it depends on does not have.

    A file with a suffix may be missing because the installation was cut off, so that is another case.
    """
    for pattern, line in itertools.product(_IMPORTED, lines):
        if (found := pattern.search(line)) and not _HAS_SUFFIX.search(found[1]):
            return _released(found[2], line)
    wrong = next((line for line in lines if _NO_EXPORT.search(line)), "")
    place = next((found[1] for one in lines if (found := _FILE_LINE.match(one))), "")
    return _released(place, wrong) if wrong else None


def _released(importer: str, line: str) -> _Said | None:
    owner = _NPM_FOLDER.search(importer)
    return _needs("broken_package", [owner[1]], line, place=importer) if owner is not None else None


_UNTRUSTED = re.compile(
    r"invalid peer certificate: UnknownIssuer|CERTIFICATE_VERIFY_FAILED|self[- ]signed certificate\b"
    r"|unable to get (?:local )?issuer certificate|unable to verify the first certificate|x509: certificate signed by"
)
"""How npm, uv, Node, Python and Go say that they do not know who signed a certificate."""
_HOST = re.compile(r"\bhttps://([\w.-]+(?::\d+)?)|\bhost='([\w.-]+)'")


def _certificate(lines: Sequence[str]) -> _Said | None:
    line = next((line for line in lines if _UNTRUSTED.search(line) and not _BORING.search(line)), None)
    return _needs("certificate", _hosts(lines), line) if line is not None else None


def _hosts(lines: Sequence[str]) -> list[str]:
    """The first host that is named."""
    found = next((found for line in lines if (found := _HOST.search(line))), None)
    return [found[1] or found[2]] if found is not None else []


class _Phrase(NamedTuple):
    """How a program says that it needs something. The groups ``name`` and ``version`` of the pattern are the need's."""

    kind: NeedKind
    pattern: str
    name: str = ""
    """For a pattern that can mean this one alone."""
    version: str = ""


def _phrases(*phrases: _Phrase) -> _Recogniser:
    """A recogniser of phrases. The first phrase that stands in any line decides: so the exact ones come first.

    Phrase by phrase, not line by line: the exact message may stand below a general one.
    """
    known = [(phrase, re.compile(phrase.pattern)) for phrase in phrases]

    def recognise(lines: Sequence[str]) -> _Said | None:
        for (phrase, pattern), line in itertools.product(known, lines):
            if found := pattern.search(line):
                said = {"name": phrase.name, "version": phrase.version, **found.groupdict("")}
                name = _address(said["name"], said.get("port", "")) if phrase.kind == "address" else said["name"]
                version = re.sub(r"\s", "", said["version"]).rstrip(",")
                return _needs(phrase.kind, [re.sub("%2[fF]", "/", name)] if name else [], line, version)
        return None

    return recognise


def _address(host: str, port: str) -> str:
    """An address as people write it: `[::1]:6379`."""
    if not port:
        host, _, port = host.rpartition(":") if ":" in host else (host, "", "")
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{host}:{port}" if port else host


# How uv, npm and its kin, pip, pnpm, Bun, Deno and Yarn say that there is no such version, or no such package.
_packages = _phrases(
    _Phrase("package", r"there (?:is|are) no versions? of (?P<name>[\w.-]+?)(?:==)(?P<version>[\w.+!]+)"),
    _Phrase("package", r"No matching version found for (?P<name>(?:@[\w.-]+/)?[\w.-]+)@(?P<version>[^\s,]+)"),
    _Phrase("package", r"No version matching \"(?P<version>[^\"]+)\" found for specifier \"(?P<name>[^\"]+)\""),
    _Phrase("package", r"Because (?P<name>[\w.@/-]+) was not found in the package registry"),
    _Phrase("package", r"^ERROR: No matching distribution found for (?P<name>[\w.\[\]=<>~!-]+)"),
    _Phrase("package", r"Could not find a version that satisfies the requirement (?P<name>[\w.-]+)"),
    _Phrase("package", r"Failed to resolve the latest version of (?P<name>(?:@[\w.-]+/)?[\w.-]+?):(?:\s|$)"),
    _Phrase("package", r"^error: GET https?://\S+?/(?P<name>(?:@[\w.-]+(?:/|%2[fF]))?[\w.-]+) - 404"),
    _Phrase("package", r"npm package '(?P<name>(?:@[\w.-]+/)?[\w.-]+)' does not exist"),
    _Phrase("package", r"YN0027: (?P<name>(?:@[\w.-]+/)?[\w.-]+)@\S+ can't be resolved"),
)


_DOCKER = re.compile(r"^docker: |Error response from daemon")
_in_docker = _phrases(
    _Phrase(
        "docker",
        r"(?i)cannot connect to the docker daemon|error during connect:|permission denied while trying to connect to "
        r"the docker daemon|docker daemon is not running",
    ),
    _Phrase(
        "image",
        r"(?i)(?:pull access denied for|manifest for|failed to resolve reference \"?)\s?(?P<name>[\w./:@-]+)",
    ),
    _Phrase("image", r"(?i)repository (?P<name>[\w./:-]+) does not exist"),
)


def _docker(lines: Sequence[str]) -> _Said | None:
    first = next((line for line in lines if _DOCKER.search(line)), None)
    return _in_docker(lines) or (_Said(_clean(first)) if first is not None else None)


_RANGE = r"(?P<version>(?:>=|~=|==|>|\^)\s?v?\d+(?:\.\d+)*(?:,\s?[<>!=~]=?\s?\d+(?:\.[\d*]+)*)*)"
_AT_LEAST = r"\b(?:requires?|needs?|wants?)\s+(?:at least\s+)?"
_runtimes = _phrases(
    _Phrase("runtime", rf"(?i)\bnode(?:\.js)?\b[^\n]{{0,40}}?{_RANGE}", "node"),
    _Phrase("runtime", rf"(?i)\bpython\b[^\n]{{0,40}}?{_RANGE}", "python"),
    _Phrase("runtime", rf"(?i){_AT_LEAST}node(?:\.js)?\s+(?:version\s+)?(?P<version>v?\d+(?:\.\d+)*)", "node"),
    _Phrase("runtime", rf"(?i){_AT_LEAST}python\s+(?:version\s+)?(?P<version>v?\d+(?:\.\d+)*)", "python"),
    # Errors of an old runtime about a program for a newer one.
    _Phrase(
        "runtime",
        r"ERR_REQUIRE_ESM|No such built-in module: node:|Cannot find module 'node:"
        r"|Unexpected token '(?:\?\.|\?\?=?|\|\|=|&&=)'|\b(?:fetch|structuredClone) is not defined",
        "node",
    ),
    _Phrase(
        "runtime",
        r"No module named 'tomllib'"
        r"|cannot import name '\w+' from '(?:typing|types|asyncio|enum|datetime|collections(?:\.abc)?)'",
        "python",
    ),
)


def _runtime(lines: Sequence[str]) -> _Said | None:
    return _runtimes([line for line in lines if not _BORING.search(line)])


def _engine(lines: Sequence[str]) -> _Said | None:
    """A package manager's warning about the runtime: the cause only if nothing else is told."""
    return _runtimes([line for line in lines if "EBADENGINE" in line])


_EXCEPTION = re.compile(
    r"^[\s|+-]*((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)?)(?::\s(.*))?$"
)
_GROUP = re.compile(r"\(\d+ sub-exceptions?\)$")


def _python(lines: Sequence[str]) -> _Said | None:
    """The exception at the end of the last traceback; of a group, the first one inside."""
    # Python prints causes first: the last traceback is the one that ended the program.
    starts = [at for at, line in enumerate(lines) if "Traceback (most recent call last):" in line]
    if not starts:
        return None
    after = [line.strip(" |+-") for line in lines[starts[-1] + 1 :] if _EXCEPTION.match(line)]
    line = next((one for one in after if one and not _GROUP.search(one)), "")
    if not line:
        return None
    if _INVALID.search(line):
        return _Said(_clean(f"{line}: {_invalid_fields(lines[starts[-1] + 1 :])}"))
    said = _told_by(line)
    return _found_at(said, lines) or said


_INVALID = re.compile(r"\b\d+ validation errors? for \w+$")
_FIELD = re.compile(r"^[A-Za-z_][\w.]*$")
_FAULT_OF_FIELD = re.compile(r"^\s+(.+?) \[type=")


def _invalid_fields(lines: Sequence[str]) -> str:
    """The fields that pydantic rejects: their names are settings of the server."""
    pairs = itertools.pairwise(lines)
    told = (
        f"{field}: {fault[1]}"
        for field, line in pairs
        if _FIELD.match(field) and (fault := _FAULT_OF_FIELD.match(line))
    )
    return "; ".join(itertools.islice(told, MOST_VARIABLES))


_FRAME = re.compile(r"^[\s|+]*File \"([^\"]+)\", line \d+, in ")


def _found_at(said: _Said, lines: Sequence[str]) -> _Said | None:
    """The same need with a file of the environment: doctor reads there which version of the package it has."""
    if said.need is None or said.need.kind != "python_package":
        return None
    files = [found[1] for line in lines if (found := _FRAME.match(line)) and "/site-packages/" in found[1]]
    return said._replace(need=said.need._replace(place=files[-1])) if files else None


def _told_by(line: str, after: Sequence[str] = ()) -> _Said:
    """What an error says, by its line and those after it."""
    return (
        _caught([line]) or _asking(line, after) or _argument([line, *after]) or _network([line]) or _Said(_clean(line))
    )


_NODE = re.compile(r"^(?:Uncaught |\[?)?(?:[A-Z]\w*)?Error(?: \[\w+\])?: \S")
_NODE_CAUSE = re.compile(r"^\s*\[cause\]: ((?:[A-Z]\w*)?Error\b.*)$")
_NODE_FRAME = re.compile(r"^\s+at ")


def _node(lines: Sequence[str]) -> _Said | None:
    """The message before the frames of a Node stack, or its last cause: `fetch failed` alone says nothing."""
    if not any(_NODE_FRAME.match(line) for line in lines):
        return None
    # Node prints the outermost error first, and the causes inside it.
    causes = [found[1].rstrip("{ ") for line in lines if (found := _NODE_CAUSE.match(line))]
    line = causes[-1] if causes else next((line for line in lines if _NODE.match(line)), None)
    if line is None:
        return None
    said = _told_by(line)
    if said.need is None or said.need.kind != "node_module":
        return said
    # `require` names its caller in the lines below. Node searches above that file: in what npx installed.
    folder = next((found for one in lines if (found := _NPX_FOLDER.search(one))), None)
    return _needs("npx_folder", [folder[1]], line) if folder else said


_NPX_FOLDER = re.compile(r"/_npx/([0-9a-f]{8,64})/node_modules/")
_OLD_PYDANTIC = "<2.12"
"""From 2.12 on, pydantic rejects fields of older libraries, and has no longer all that they took from its inside."""
_REQUIREMENT = r"(?P<name>[A-Za-z][\w.-]*)(?P<version>(?:\s?[<>=!~]=?\s?[\w.*]+,?)+)"
"""A package and its versions. They stand in a need as `--with` takes them."""

# A missing module, version or key, also where a program caught the exception and printed its text alone. A package
# without what a program takes from it: the program was written for another version of the package. What each version of
# the SDK has is known.
_caught = _phrases(
    _Phrase("variable", r"^\s*KeyError: '(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)'\s*$"),
    _Phrase("python_package", r"No module named '?mcp\.[\w.]*mcpserver", "mcp", ">=2"),
    _Phrase("python_package", r"No module named '?mcp\.[\w.]*fastmcp", "mcp", "<2"),
    _Phrase("python_package", r"No module named '?pydantic\._internal", "pydantic", _OLD_PYDANTIC),
    # Python names the first part that is missing: of `a.b`, `a` is there. It is no package where a file of the server
    # has the name of a module.
    _Phrase("python_package", r"No module named '?(?P<name>\w+)\.[\w.]+'?(?!.* is not a package)"),
    _Phrase("python_module", r"No module named '?(?P<name>\w+)'?(?![\w.'])(?!.* is not a package)"),
    _Phrase(
        "python_package",
        r"cannot import name '(?:MCPServer|MCPError)\w*' from 'mcp\b[^(]*\([^)]*\bsite-packages\b",
        "mcp",
        ">=2",
    ),
    _Phrase(
        "python_package",
        r"cannot import name '(?:FastMCP\w*|McpError|streamablehttp_client|RequestContext)' from 'mcp\b[^(]*"
        r"\([^)]*\bsite-packages\b",
        "mcp",
        "<2",
    ),
    _Phrase("python_package", r"cannot import name '\w+' from 'pydantic\._internal\b", "pydantic", _OLD_PYDANTIC),
    _Phrase("python_package", r"cannot import name '\w+' from '(?P<name>\w+)[\w.]*' \([^)]*\bsite-packages\b"),
    _Phrase(
        "python_package",
        r"'Server' object has no attribute '(?:list|call|read|get|set|subscribe|unsubscribe)_\w+'",
        "mcp",
        "<2",
    ),
    _Phrase(
        "python_package",
        r"^\s*TypeError: cannot specify both default and default_factory\s*$",
        "pydantic",
        _OLD_PYDANTIC,
    ),
    _Phrase("python_package", rf"requires? {_REQUIREMENT}[^\n]{{0,40}}(?:but you have|incompatible)"),
    _Phrase("python_package", rf"(?<![\w.-]){_REQUIREMENT} is required[^\n]{{0,80}} but found"),
    _Phrase("python_package", rf"Requirement\.parse\('{_REQUIREMENT}'\)"),
    _Phrase("python_package", rf"The '{_REQUIREMENT}' distribution was not found"),
    # How a Python package says that it uses another one that it does not install by itself.
    _Phrase(
        "python_module",
        r"(?:ImportError|ModuleNotFoundError|RuntimeError): .*\bpip install (?:-U |--upgrade )?[\"'`]?"
        r"(?P<name>[A-Za-z][\w.-]*(?:\[[\w,.-]+\])?)",
    ),
    _Phrase(
        "python_module",
        r"(?:ImportError|ModuleNotFoundError): [`']?(?P<name>[a-z][\w.-]*)[`']? is (?:required|not installed)\b",
    ),
    _Phrase("npx_folder", r"^(?=.*Cannot find (?:module|package) ').*/_npx/(?P<name>[0-9a-f]{8,64})/node_modules/"),
    _Phrase("node_module", r"Cannot find (?:module|package) '(?P<name>[^']+)'"),
)


_ERROR = re.compile(r"(?i)^(?:[\w.@/-]+: )?\W?(?:fatal|error|panic)\b ?(?:\[\w+\])?:? \S")


def _error(lines: Sequence[str]) -> _Said | None:
    """The first line that begins as an error; a usage text may follow it."""
    for at, line in enumerate(lines):
        if _ERROR.match(line) and not _BORING.search(line):
            return _told_by(line, lines[at + 1 :])
    return None


_ARGUMENTS = (
    re.compile(r"(?i)the following (?:required )?arguments (?:are required|were not provided): *(.*)$"),
    re.compile(r"(?i)missing (?:required )?(?:options?|arguments?|parameters?|flags?):? *[`'\"]?([^`'\".]+)"),
    re.compile(r"(?i)required (?:options?|arguments?|flags?) [`'\"]([^`'\"]+)[`'\"] (?:not|is not|was not|missing)"),
    re.compile(r"(?i)\brequires? the [`'\"]?(--[\w-]+)[`'\"]? (?:flag|option|argument)"),
)
"""How argparse, click, commander, yargs and clap say which argument is missing."""
_AN_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_AN_ARGUMENT = re.compile(r"[<\[]?([A-Za-z][\w-]*)[>\]]?")


def _argument(lines: Sequence[str]) -> _Said | None:
    for pattern, (at, line) in itertools.product(_ARGUMENTS, enumerate(lines)):
        if found := pattern.search(line):
            said = found[1] or " ".join(itertools.takewhile(lambda one: not _USAGE.match(one), lines[at + 1 :]))
            plain = [name[1] for one in re.split(r", ?| and ", said) if (name := _AN_ARGUMENT.fullmatch(one.strip()))]
            names = list(dict.fromkeys(_AN_OPTION.findall(said) or plain))
            if names:
                return _Said(_clean(line), Need("argument", tuple(names[:MOST_VARIABLES])))
    return None


_VARIABLE = re.compile(r"(?<![\w$./-])([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w/-])")
_LACKS = re.compile(
    r"(?i)not (?:set|found|defined|provided|given|configured|specified|present)|missing|must|require|need|\bset\b"
    r"|please|undefined|unset|empty|\b(?:cannot|can't|unable|not)\b.{0,60}\bwithout\b"
    r"|\bor pass\b|\bno\b.{0,60}\b(?:provided|given|configured|specified|found|set)\b"
)
_USAGE = re.compile(r"(?i)\s*(?:usage|options|commands|environment variables)\b")
_NOT_VARIABLES = re.compile(r"^(?:ERR|E|UV|NODE|HTTP|SIG|MODULE)_")
_OR = re.compile(r"(?i)\bor\b|(?<=\s)/(?=\s)|\||\balternatively\b")
_AND = re.compile(r"(?i)\band\b|&|\+|\bwith\b(?!.*\bor\b)")
_LISTED = re.compile(r"[\s,;`'\"()]*(?:--[\w-]+[\s,;`'\"()]*)*")
_SENTENCE = re.compile(r"[.!?;]\s")
_CHOICE = re.compile(r"(?i)\b(?:either|(?:at least )?one of|any of|any one of)\b")
_INSTEAD = re.compile(r"(?i)\binstead\b")
_LIST_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])?\s*[`'\"]?(?:export )?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_OTHERWISE = re.compile(r"(?i)^\W*(?:or|alternatively|otherwise)\b")
_OPTIONAL = re.compile(r"(?i)\boptional(?:ly)?\b|\bdefaults? to\b|\busing (?:the )?default\b")


def _variables(lines: Sequence[str]) -> _Said | None:
    for at, line in enumerate(lines):
        if _BORING.search(line) or not (_groups(line) or _announces(line)):
            continue
        if (said := _asking(line, lines[at + 1 :])) is not None:
            return said
    return None


def _asking(line: str, following: Sequence[str]) -> _Said | None:
    """A line that asks for variables, itself or in the lines that follow; a usage text names too many."""
    said = [line, *itertools.takewhile(lambda one: not _USAGE.match(one), following[:LONGEST_LIST])]
    # Alternatives stay together: of "A or B" a person is asked for A, and told of B.
    groups = _merged(said)
    names = list(dict.fromkeys(group[0] for group in groups))[:MOST_VARIABLES]
    others = dict.fromkeys(name for group in groups for name in group[1:] if name not in names)
    return _needs("variable", names, line, others=list(others)[:MOST_VARIABLES]) if names else None


def _merged(lines: Sequence[str]) -> list[list[str]]:
    """The variables of several lines, as groups of alternatives. A name in two groups makes one group of them."""
    merged: list[list[str]] = []
    listed: ListKind = ""
    began = False
    for line in lines:
        groups = _groups(line, listed=bool(listed))
        if groups and (listed == "one" or _OTHERWISE.match(line)):
            before = merged.pop() if merged and (began or not listed) else []
            groups = [[*before, *(name for group in groups for name in group)]]
        for group in groups:
            _add(merged, group)
        began = bool(listed and groups)
        listed = _announces(line) or (listed if groups else "")
    return merged


def _add(merged: list[list[str]], group: Sequence[str]) -> None:
    names = set(group)
    same = next((one for one in merged if not names.isdisjoint(one)), None)
    if same is None:
        merged.append(list(dict.fromkeys(group)))
    else:
        same += [name for name in group if name not in same]


def _announces(line: str) -> ListKind:
    """Whether a list of variables follows a line, and whether one of them is enough."""
    if not line.rstrip().endswith(":") or _OPTIONAL.search(line):
        return ""
    return "one" if _CHOICE.search(line) else "all" if _LACKS.search(line) else ""


def _groups(line: str, *, listed: bool = False) -> list[list[str]]:
    """The variables that a line asks for, as groups of alternatives; ``listed`` is a line of a list of them."""
    asks = _LACKS.search(line) or (listed and _LIST_ITEM.match(line))
    if not asks or _OPTIONAL.search(line):
        return []
    found = [one for one in _VARIABLE.finditer(line) if not _NOT_VARIABLES.match(one[1])]
    groups: list[list[str]] = []
    joins = False
    # From the last to the first: the last joint of a list says what all of them are.
    for at, one in reversed(list(enumerate(found))):
        if joins:
            groups[0].insert(0, one[1])
        else:
            groups.insert(0, [one[1]])
        joins = at > 0 and _are_alternatives(line, found, at, after=joins)
    return groups


def _are_alternatives(line: str, found: Sequence[re.Match[str]], at: int, *, after: bool) -> bool:
    """Whether the variable at a place may stand for the one before it: "A or B", "A, B, or C", "one of A, B".

    ``after`` says whether the one after it may stand for it.
    """
    between = line[found[at - 1].end() : found[at].start()]
    if ends := list(_SENTENCE.finditer(between)):
        sentence = between[ends[-1].end() :] + _SENTENCE.split(line[found[at].start() :], maxsplit=1)[0]
        return bool(_OTHERWISE.match(sentence) or _INSTEAD.search(sentence))
    if _OR.search(between):
        return True
    if _AND.search(between):
        return False
    if not _LISTED.fullmatch(between):
        return False
    if at + 1 < len(found):
        return after
    start = max((end.end() for end in _SENTENCE.finditer(line, 0, found[at].start())), default=0)
    return _CHOICE.search(line, start, found[at].start()) is not None


# How Node, Python, its drivers of databases, Go and Rust say that a service does not answer at its address, or that
# another process listens on a port.
_network = _phrases(
    _Phrase("address", r"\b(?:ECONNREFUSED|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH) (?P<name>[\w.:\[\]-]+:\d+)"),
    _Phrase("address", r"\bgetaddrinfo (?:ENOTFOUND|EAI_AGAIN) (?P<name>[\w.-]+)"),
    _Phrase("address", r"Connect call failed \('(?P<name>[\w.:-]+)', (?P<port>\d+)"),
    _Phrase("address", r"connection to server at \"(?P<name>[\w.:-]+)\"(?: \([\w.:]+\))?, port (?P<port>\d+) failed"),
    _Phrase("address", r"Error -?\d+ connecting to (?P<name>[\w.:-]+:\d+)"),
    _Phrase("address", r"(?<![\w.-])(?P<name>[\w.-]+:\d+): \[Errno \d+\] Connection refused"),
    _Phrase("address", r"\bhost='(?P<name>[\w.-]+)', port=(?P<port>\d+)\): Max retries exceeded"),
    _Phrase("address", r"\bdial tcp (?P<name>[\w.:\[\]-]+:\d+): connect: "),
    _Phrase("address", r"Can't connect to MySQL server on '(?P<name>[\w.-]+(?::\d+)?)'"),
    _Phrase("port", r"(?i)\baddress already in use \S*?:(?P<name>\d+)$"),
    _Phrase("port", r"(?i)\('[^']*', (?P<name>\d+)\): .*\baddress already in use\b"),
    _Phrase("port", r"(?i)\baddress already in use: \('[^']*', (?P<name>\d+)\)"),
    _Phrase("port", r"(?i)\blisten tcp \S*:(?P<name>\d+): .*\baddress already in use\b"),
    _Phrase("port", r"(?i)\bEADDRINUSE\b|\baddress already in use\b|\bAddrInUse\b"),
)


_WORDS = re.compile(
    r"(?i)\b(?:errors?|failed|failure|cannot|could not|can't|not found|denied|refused|fatal|exception|required|missing"
    r"|invalid|unable|unknown|no such)\b"
)


def _suspicious(lines: Sequence[str]) -> _Said | None:
    line = next((line for line in reversed(lines) if _WORDS.search(line) and not _BORING.search(line)), None)
    return _Said(_clean(line)) if line is not None else None


_BORING = re.compile(
    r"^npm (?:warn|WARN)\b|^npm (?:error|ERR!)\s*$|complete log of this run|^Node\.js v\d|^\s+at |^\s*\^+\s*$"
    r"|^\s{2,}-{1,2}\w|^Installed \d+ packages?|^(?:WARNING|warning): |(?i:deprecat)"
)

# The order decides. First the tools that name their cause, then tracebacks, then lines that look like an error. A line
# that only has a suspicious word comes last: most programs print some of them while all is well.
_RECOGNISERS: tuple[_Recogniser, ...] = (
    _npm,
    _withdrawn,
    _executable,
    _packages,
    _certificate,
    _docker,
    _broken_package,
    _runtime,
    _python,
    _node,
    _caught,
    _error,
    _variables,
    _argument,
    _network,
    _engine,
    _suspicious,
)


_ARROW = re.compile(r"^\s*(?:cause:|╰─▶|×)\s*(?=\S)")


def _clean(line: str) -> str:
    """A line without its indentation, and without what uv and npm draw before it."""
    return " ".join(_ARROW.sub("", line).split())
