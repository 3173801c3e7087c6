"""Short labels for long facts: the script of a command line, the place of a URL, the cause of a failure.

A fleet has dozens of servers that all start with ``npx -y`` or ``python``: what tells them apart is what comes after.
Pure functions. The full command and the full reason are shown elsewhere.

``is_loopback`` says which hosts are this machine: one rule for what is sent unencrypted and for what may listen without
a token.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

__all__ = ["cause_of", "is_loopback", "place_of", "script_of"]

_DURATION = re.compile(r"\b(?:for|after|within|in)?\s*\b\d+(?:\.\d+)? ?(?:ms|s|min|m|h|d)\b")


def cause_of(reason: str) -> str:
    """A reason without its durations: servers that fail alike at different times have an equal cause."""
    return " ".join(_DURATION.sub(" ", reason).split())


def place_of(url: str) -> str:
    """Host and path of a URL; the URL itself if it has no host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    host = parts.netloc.rpartition("@")[2]
    return f"{host}{parts.path.rstrip('/')}" if host else url


def script_of(words: Sequence[str]) -> str:
    """What a command line runs: the script, module, package or image, not the interpreter or the installer."""
    return _script(list(words)) or (_name(words[0]) if words else "")


def _script(words: list[str]) -> str:
    if not words:
        return ""
    program, rest = _name(words[0]), words[1:]
    base = re.sub(r"(?:\d+(?:\.\d+)*)?(?:\.exe|\.cmd)?$", "", program)
    if base in _PREFIXES:
        return _script(_after_options(rest, _PREFIXES[base], assignments=True))
    if base in _SUBCOMMANDS and rest:
        return _subcommand(base, rest)
    if base in _INTERPRETERS:
        return _interpreted(rest, _INTERPRETERS[base])
    if base in _INSTALLERS:
        found = _after_options(rest, _INSTALLERS[base])
        return found[0] if found else ""
    return program


def _interpreted(rest: list[str], with_value: frozenset[str]) -> str:
    """A script by its file name, a module by its name. Code on the command line has no name."""
    for index, word in enumerate(rest):
        if word in {"-m", "-jar"} and index + 1 < len(rest):
            return _name(rest[index + 1])
        if word in {"-c", "-e", "-p"}:
            return ""
        if not word.startswith("-"):
            break
    found = _after_options(rest, with_value)
    return _name(found[0]) if found else ""


def _subcommand(base: str, rest: list[str]) -> str:
    verbs, with_value = _SUBCOMMANDS[base]
    found = _after_options(rest, with_value)
    if not found or found[0] not in verbs:
        return _name(found[0]) if found and base in {"bun", "deno", "dotnet"} else ""
    after = _after_options(found[1:], with_value)
    if not after:
        return ""
    return _script(after) if base in {"uv", "poetry", "pdm"} else after[0]


def _after_options(words: list[str], with_value: frozenset[str], *, assignments: bool = False) -> list[str]:
    """The words from the first one that is no option and no value of one."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return words[at + 1 :]
        if word.startswith("-") or (assignments and re.match(r"\w+=", word)) or (word == "/c" and at == 0):
            at += 2 if word in with_value else 1
            continue
        return words[at:]
    return []


def _name(word: str) -> str:
    """The last part of a path. The name of a package, such as ``@scope/name``, is no path."""
    if word.startswith("@") or "://" in word:
        return word
    return re.split(r"[/\\]", word.rstrip("/\\"))[-1]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NODE = _set("-r --require --import --loader --env-file --experimental-loader --tsconfig")
_PYTHON = _set("-W -X")
_CONTAINER = _set(
    "-v --volume -e --env --env-file --name --network --net -p --publish --mount -w --workdir -u --user --entrypoint"
    " --add-host -l --label --platform --pull -m --memory --cpus --gpus -h --hostname --volumes-from --security-opt"
)
_UV = _set(
    "--directory --project --with --with-editable --with-requirements --python -p --env-file --index --index-url"
    " --default-index --extra-index-url --from --extra --group --package --refresh-package -w"
)
_INTERPRETERS = {
    **dict.fromkeys(("python", "pypy"), _PYTHON),
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node"), _NODE),
    **dict.fromkeys(("bash", "sh", "zsh", "ruby", "perl", "php"), frozenset[str]()),
    "java": _set("-cp -classpath --module-path"),
}
_INSTALLERS = {
    "npx": _set("-p --package -c --call"),
    "bunx": _set("-p --package"),
    "pnpx": _set("--package"),
    "uvx": _UV,
}
_SUBCOMMANDS = {
    "uv": (("run",), _UV),
    "poetry": (("run",), _set("-C --directory -P --project")),
    "pdm": (("run",), _set("-p --project")),
    "pipx": (("run",), _set("--spec --python --index-url --pip-args")),
    "npm": (("exec", "x"), _set("-p --package")),
    "pnpm": (("dlx", "exec"), _set("--package -C --dir")),
    "yarn": (("dlx", "exec"), _set("-p --package")),
    "bun": (("x", "run"), _set("--cwd")),
    "deno": (("run",), _set("--config -c --import-map --env-file")),
    "dotnet": (("run", "exec"), frozenset[str]()),
    "go": (("run",), _set("-C")),
    **dict.fromkeys(("docker", "podman", "nerdctl"), (("run", "exec"), _CONTAINER)),
}
_PREFIXES = {
    "env": _set("-u --unset -C --chdir"),
    "sudo": _set("-u -g"),
    "nice": _set("-n"),
    "cmd": frozenset[str](),
    "nohup": frozenset[str](),
}


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine and cannot be another one.

    True for ``127.0.0.0/8``, ``::1``, IPv4-mapped forms of these, and the name ``localhost``. False for every other
    name, ``app.localhost`` too: a resolver may ask the network for it, and the answer may be another machine.
    """
    name = host.removesuffix(".").lower()
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
