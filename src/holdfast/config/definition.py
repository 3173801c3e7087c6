"""Turns one server's definition into a ``ServerSpec``; one that cannot be used has every problem.

Bad input does not raise here: every fault becomes a problem of this server alone.
A problem names keys and positions and never quotes a value, because any value may be a secret.

``steers`` says which environment variables change what a name runs, or where its code comes from (SEC-8).

The trust question marks them. Each runtime, package manager and shell that servers are started with has some.
"""

from __future__ import annotations

import difflib
import glob
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.config.expand import EnvFile, Expansion, gather_secrets, names_of_editors, read_env_file
from holdfast.config.fields import InvalidValue, kind_of, read_flag, read_transport
from holdfast.config.file_models import (
    CONNECTION_KEYS,
    SERVER_KEYS,
    ServerFile,
    credential_ladder,
    meaning,
    oauth_settings,
)
from holdfast.config.jsonc import Document, KeyPath, joined, quoted
from holdfast.config.settings import ApprovalMode
from holdfast.config.spec import (
    IDENTITY_HEADERS,
    CredentialLadder,
    OAuthSettings,
    ServerSpec,
    ToolFilter,
    Transport,
    hub_url,
    is_key_text,
)
from holdfast.core import is_loopback
from holdfast.errors import Problem

__all__ = [
    "Definition",
    "ReadContext",
    "expansion_at",
    "keys_of",
    "read_definition",
    "steers",
    "unknown_key",
    "validation_problems",
]

_NAMES: Final = frozenset(
    [
        *("PATH", "IFS", "ENV", "BASH_ENV", "SHELL", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "ZDOTDIR"),
        *(
            "CDPATH",
            "HOME",
            "TMPDIR",
            "XDG_CONFIG_HOME",
            "XDG_CONFIG_DIRS",
            "XDG_DATA_DIRS",
        ),  # programs and their settings
        *("NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED", "COREPACK_NPM_REGISTRY"),
        *(
            "VIRTUAL_ENV",
            "PERLLIB",
            "CLASSPATH",
            "MAVEN_OPTS",
            "GRADLE_OPTS",
            "_JAVA_OPTIONS",
            "PHPRC",
            "PHP_INI_SCAN_DIR",
        ),
        *("GOENV", "GOFLAGS", "GOINSECURE", "GONOSUMCHECK", "GONOSUMDB", "GOPATH", "GOPRIVATE", "GOPROXY", "GOROOT"),
        *("GOSUMDB", "GOTOOLCHAIN", "RUSTC", "RUSTC_WRAPPER", "RUSTFLAGS", "MAKEFLAGS", "CC", "CXX"),
        *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "KUBECONFIG"),
        *("EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "SSH_ASKPASS", "SUDO_ASKPASS"),
        *("GCONV_PATH", "GETCONF_DIR", "LOCPATH", "NLSPATH", "HOSTALIASES", "OPENSSL_CONF", "OPENSSL_ENGINES"),
        *(
            "OPENSSL_MODULES",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "CURL_HOME",
            "WGETRC",
        ),
    ]
)

_LEADS: Final = (
    *("LD_", "DYLD_", "GLIBC_", "MALLOC_", "BASH_FUNC_", "PYTHON", "PIP_", "PIPX_", "UV_", "POETRY_", "PDM_", "CONDA_"),
    *("NPM_CONFIG_", "PNPM_", "YARN_", "BUN_", "DENO_", "TS_NODE_", "PERL5", "PERL_", "RUBY", "GEM_", "BUNDLE_"),
    *("JAVA_", "JDK_", "DOTNET_", "CORECLR_", "COR_", "LUA_", "GIT_", "CARGO_", "HOLDFAST_"),
)


def steers(variable: str) -> bool:
    """Whether a variable changes what a usual program runs. Case does not count: npm reads lower case too."""
    upper = variable.upper()
    return upper in _NAMES or upper.startswith(_LEADS)


log = logging.getLogger("holdfast.config")

_TYPE_KEYS = ("type", "transport", "transportType")
_URL_KEYS = ("url", "serverUrl", "httpUrl")
_PROCESS_KEYS = ("args", "env", "envFile", "cwd")
_REQUEST_KEYS = ("headers", "allowPlainHttp", "oauth", "credentials")
_RUN_KEYS = ("era", "sharing", "scope", "lazy")
"""What the hub decides that has the server."""


@dataclass(frozen=True, kw_only=True)
class ReadContext:
    """What a definition is read with: the environment, the folders, the positions in the file."""

    document: Document
    environ: Mapping[str, str]
    is_connection: bool = False
    """Whether it is a connection of a program: nothing is expanded in it, and it may have keys of LangChain."""
    is_foreign: bool = False
    """Whether another machine sent it: then it must not learn, or let be read, anything of this one."""
    folder: Path | None = None
    """The folder that relative paths start from; None leaves them as they are."""
    workspace: Path | None = None
    """The folder that a client works in, for servers that run once for each folder; None while it is not known."""
    is_own_file: bool = False
    """Whether this is the user's own file, which belongs to no project."""
    found: bool = False
    """Whether the search found the file and no one named it."""

    @property
    def trusted_by_content(self) -> bool:
        """Whether the file is used because its user trusted its content. That says nothing about an ``envFile``."""
        return self.found and not self.is_own_file


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The result of reading a definition, and how it was read."""

    server: ServerSpec
    path: KeyPath
    given: Mapping[str, object] = field(default_factory=dict, repr=False)
    expansion: Expansion = field(default_factory=Expansion, repr=False)
    env_file: EnvFile | None = field(default=None, repr=False)


def read_definition(
    server_id: str,
    raw: object,
    path: KeyPath,
    context: ReadContext,
    *,
    problems: Iterable[Problem] = (),
) -> Definition:
    """Read the definition at ``path``; ``problems`` are those that the caller already found."""
    return _DefinitionReader(server_id, path, context, problems).read(raw)


def expansion_at(path: KeyPath, context: ReadContext) -> Expansion:
    """What resolves the references of the value at ``path``; for a foreign document nothing of this machine."""
    if context.is_foreign:
        return Expansion(path, context.document)
    known = names_of_editors(context.workspace or context.folder, context.environ)
    return Expansion(path, context.document, context.environ, known)


class _DefinitionReader:
    """Reads one definition."""

    def __init__(self, server_id: str, path: KeyPath, context: ReadContext, problems: Iterable[Problem]) -> None:
        self._id = server_id
        self._path = path
        self._context = context
        self._problems = list(problems)
        self._found = expansion_at(path, context)
        self._env_file: EnvFile | None = None
        self._follows_folder = False
        """Whether the definition uses the folder of its client."""

    def read(self, raw: object) -> Definition:
        self._problems += _id_faults(self._id, self)
        if not isinstance(raw, dict):
            hint = 'write {"command": "…"} or {"url": "…"}'
            self._problems.append(self.fault((), f"the server must be an object, not {kind_of(raw)}", hint))
            return Definition(server=self._bad({}), path=self._path, expansion=self._found)
        self._follows_folder = self._context.is_own_file and "${workspaceFolder" in repr(raw)
        given = self._relevant(raw)
        if not self._context.is_connection:
            given = self._found.expand(given)
            self._problems += self._found.problems
        self._problems += _contradictions(given, self)
        self._problems += self._command_faults(given)
        self._problems += self._env_file_faults(given)
        model = self._validate(given)
        return Definition(
            server=self._bad(given) if model is None or self._problems else self._spec(model),
            path=self._path,
            given=given,
            expansion=self._found,
            env_file=self._env_file,
        )

    def _bad(self, given: Mapping[str, object]) -> ServerSpec:
        in_order = sorted(self._problems, key=lambda problem: (problem.line, problem.column))
        disabled = read_flag(given.get("enabled")) is False or read_flag(given.get("disabled")) is True
        return ServerSpec(
            id=self._id,
            problems=tuple(in_order),
            enabled=not disabled,
            secrets=frozenset(filter(str.strip, self._found.secrets)),
        )

    def fault(self, inside: KeyPath, message: str, hint: str = "", *, at_key: bool = False) -> Problem:
        """A problem with the value (or the key) that is ``inside`` the definition."""
        return self._context.document.problem((*self._path, *inside), message, hint=hint, at_key=at_key)

    # The keys as written

    def _relevant(self, raw: dict[str, object]) -> dict[str, object]:
        """The keys that have an effect for this server; null is read as absent."""
        foreign = {*SERVER_KEYS, *CONNECTION_KEYS} if self._context.is_connection else SERVER_KEYS
        given = {key: value for key, value in raw.items() if value is not None and key not in foreign}
        has_url = any(key in given for key in _URL_KEYS)
        useless: tuple[str, ...] = ()
        if "hub" in given:
            useless = (*_PROCESS_KEYS, *_REQUEST_KEYS, *_RUN_KEYS)
        elif has_url != ("command" in given):
            useless = _PROCESS_KEYS if has_url else _REQUEST_KEYS
        if ignored := [key for key in useless if given.get(key)]:
            log.info("%s: these keys have no effect for this kind of server: %s", self._id, ", ".join(ignored))
        return {key: value for key, value in given.items() if key not in useless}

    def _validate(self, given: dict[str, object]) -> ServerFile | None:
        try:
            model: ServerFile = ServerFile.model_validate(given)
        except ValidationError as error:
            document = self._context.document
            self._problems += validation_problems(error, ServerFile, self._path, document, known=self._found)
            return None
        return model

    # Files and programs that it names

    def _text(self, given: Mapping[str, object], key: str) -> str:
        """The text at ``key``; empty if it is not a text or its expansion failed."""
        value = given.get(key)
        broken = self._found.broken((*self._path, key))
        return value if isinstance(value, str) and not broken and "\0" not in value else ""

    def _command_faults(self, given: Mapping[str, object]) -> Iterator[Problem]:
        command = self._command(self._text(given, "command"))
        if not any(c.isspace() for c in command.strip()):
            return
        found = shutil.which(command, path=self._context.environ.get("PATH"))
        if not found and not os.path.exists(command):  # noqa: PTH110 - never raises
            hint = 'split it: the first word is the "command", each further one a text in the list "args"'
            yield self.fault(("command",), "`command` is a whole command line, and no such file exists", hint)

    def _env_file_faults(self, given: Mapping[str, object]) -> Iterator[Problem]:
        """Read the ``envFile``; what is wrong with it."""
        written, key = self._text(given, "envFile"), ("envFile",)
        if not written:
            return
        if self._context.is_foreign:
            yield self.fault(key, "`envFile` is not read for a document from another machine", "use `env`")
            return
        try:
            self._env_file = read_env_file(self._resolve(written))
        except OSError as error:
            why = error.strerror or type(error).__name__
            where = f"a relative path starts from {self._context.folder or 'the working folder'}"
            yield self.fault(key, f"`envFile` cannot be read: {why}", where)
            return
        except UnicodeDecodeError:
            yield self.fault(key, "`envFile` is not UTF-8 text", "save that file as UTF-8")
            return
        except ValueError as error:
            yield self.fault(key, f"`envFile` cannot be used: {error}", "is it the right file?")
            return
        yield from self._env_file.problems
        # A variable that changes what runs is refused where its user was never asked about it (SEC-8).
        for name in filter(steers, self._env_file.values) if self._context.trusted_by_content else ():
            message = f"`envFile` sets {name}, which changes what runs, and trust does not cover that file"
            yield self.fault(key, message, "write it into `env`, or name this configuration with --config")

    def _resolve(self, written: str) -> Path:
        if not self._context.is_connection and (written == "~" or written.startswith("~/")):
            written = (self._context.environ.get("HOME") or "~") + written[1:]
        return self._context.folder / written if self._context.folder else Path(written)

    def _command(self, written: str) -> str:
        """A path is resolved as other paths are; a bare name is looked up on PATH later."""
        return str(self._resolve(written)) if os.sep in written and not self._context.is_connection else written

    # The resulting spec

    def _working_folder(self, model: ServerFile) -> Path | None:
        context, of_project = self._context, model.scope == "project" or self._follows_folder
        if of_project and context.workspace:
            return context.workspace
        # A user's own servers belong to no project, so they run in the folder that Holdfast was started in.
        return None if context.is_own_file else context.folder

    def _spec(self, model: ServerFile) -> ServerSpec:
        if model.placement is not None:
            log.warning("%s: `placement` is an old key without effect and will be removed: leave it out", self._id)
        url = hub_url(model.hub, self._id) if model.hub else model.url or model.server_url or model.http_url or ""
        oauth, credentials = oauth_settings(model.oauth), credential_ladder(model.credentials)
        env = {**(self._env_file.values if self._env_file else {}), **model.env}
        return meaning(
            ServerSpec,
            model,
            id=self._id,
            transport=_transport(model, url),
            command=self._command(model.command),
            env=MappingProxyType(env),
            cwd=self._resolve(model.cwd) if model.cwd else (self._working_folder(model) if model.command else None),
            url=url,
            headers=MappingProxyType(dict(model.headers)),
            oauth=oauth,
            credentials=credentials,
            tools=_tool_filter(model),
            approvals=_approvals(self._id, model),
            enabled=model.enabled and not model.disabled,
            era="modern" if model.hub else model.era,
            scope="project" if self._follows_folder else model.scope,
            secrets=gather_secrets(
                env=env,
                headers=model.headers,
                url=url,
                args=model.args,
                expanded=[*self._found.secrets, *_client_secrets(oauth, credentials)],
            ),
        )


def _id_faults(server_id: str, reader: _DefinitionReader) -> Iterator[Problem]:
    if not server_id.strip():
        yield reader.fault((), "the server has no name", "write the name as the key before its definition", at_key=True)
    elif not server_id.isprintable():
        yield reader.fault((), "the server's name contains a control character", "use letters and digits", at_key=True)


def _contradictions(given: Mapping[str, object], reader: _DefinitionReader) -> Iterator[Problem]:
    """Keys that cannot hold at the same time."""
    yield from _transport_faults(given, reader)
    yield from _disagreement(given, reader, _TYPE_KEYS, "the transport is given twice, with different values")
    yield from _disagreement(given, reader, _URL_KEYS, "the address is given twice, with different values")
    if "enabled" in given and "disabled" in given and read_flag(given["enabled"]) == read_flag(given["disabled"]):
        yield reader.fault(("disabled",), "`enabled` and `disabled` contradict each other", "keep one", at_key=True)
    yield from _identity_faults(given, reader)
    if given.get("sharing") == "per-user":
        yield from _per_user_faults(given, reader)
    elif "credentials" in given:
        hint = 'add "sharing": "per-user", or remove it: a server that its users share has one login, of the hub'
        yield reader.fault(("credentials",), "`credentials` are for a server that is `per-user`", hint, at_key=True)
    yield from _credential_faults(given, reader)
    tools = given.get("tools")
    if "includeTools" in given and (isinstance(tools, list) or (isinstance(tools, dict) and "include" in tools)):
        message = "`includeTools` and `tools` both say which tools to show"
        yield reader.fault(("includeTools",), message, "keep `tools.include`", at_key=True)


def _identity_faults(given: Mapping[str, object], reader: _DefinitionReader) -> Iterator[Problem]:
    """A server that would not be told who calls must not seem to be."""
    identity = given.get("identity")
    if identity in (None, "none"):
        return
    if "command" in given:
        hint = "leave it out: a program on stdio has one user, and gets no headers"
        yield reader.fault(("identity",), "`identity` needs a server with a `url`", hint, at_key=True)
    elif "hub" in given:
        hint = "leave it out here: that hub learns who calls, and its own definition of the server can say `identity`"
        yield reader.fault(("identity",), "`identity` has no effect beside `hub`", hint, at_key=True)
    written = given.get("headers")
    ours = {name.lower() for name in IDENTITY_HEADERS.values()}
    for name in [name for name in written if str(name).lower() in ours] if isinstance(written, dict) else []:
        hint = "remove it from `headers`: the hub writes it for each request"
        yield reader.fault(("headers", str(name)), f"`identity` writes the header `{name}`", hint, at_key=True)


def _per_user_faults(given: Mapping[str, object], reader: _DefinitionReader) -> Iterator[Problem]:
    """What cannot be said of a server where each user acts as herself."""
    headers = given.get("headers")
    for name in headers if isinstance(headers, Mapping) else ():
        if str(name).lower() == "authorization":
            message = "a server that is `per-user` has an `Authorization` header, which would be the same for all users"
            yield reader.fault(("headers", str(name)), message, "remove the header: each user logs in", at_key=True)
    for key, value in (("hub", None), ("scope", "project")):
        if key in given and value in (None, given[key]):
            message = f"`per-user` does not go together with `{key}`"
            yield reader.fault(("sharing",), message, f"remove `{key}`, or let its users share the server")


def _credential_faults(given: Mapping[str, object], reader: _DefinitionReader) -> Iterator[Problem]:
    """A user's credential leaves the hub only over TLS, or within this machine."""
    ladder = given.get("credentials")
    for rung in ("assertion", "exchange"):
        service = ladder.get(rung) if isinstance(ladder, Mapping) else None
        if not isinstance(service, Mapping):
            continue
        url = service.get("tokenUrl")
        if isinstance(url, str) and _is_plain_http(url) and not read_flag(given.get("allowPlainHttp", False)):
            message = f"`credentials.{rung}.tokenUrl` is an unencrypted address: users' tokens would be sent there"
            hint = 'use https, or set `"allowPlainHttp": true` for this server if the network is trusted'
            yield reader.fault(("credentials", rung, "tokenUrl"), message, hint)
        if service.get("form") == "on-behalf-of" and not service.get("scope"):
            message = "`credentials.exchange` lacks `scope`, which the form `on-behalf-of` needs"
            hint = 'write the scope of the server there, as in "api://tracker/.default"'
            yield reader.fault(("credentials", rung), message, hint)


def _is_plain_http(url: str) -> bool:
    """Whether an address is neither over TLS nor on this machine; one that is none is a fault of its own."""
    try:
        parts = urlsplit(url)
        return parts.scheme.lower() == "http" and not is_loopback(parts.hostname or "")
    except ValueError:
        return False


def _transport_faults(given: Mapping[str, object], reader: _DefinitionReader) -> Iterator[Problem]:
    urls = [key for key in _URL_KEYS if key in given]
    declared = next((read_transport(given[key]) for key in _TYPE_KEYS if key in given), None)
    type_key = next((key for key in _TYPE_KEYS if key in given), "type")
    if "hub" in given:
        for key in [key for key in ("command", *urls, *_TYPE_KEYS) if key in given][:1]:
            hint = "keep `hub` for a server that another hub runs"
            yield reader.fault((key,), f"the server has both `hub` and `{key}`", hint, at_key=True)
    elif "command" in given and urls:
        hint = "keep `command` for a program that is started here, the URL for a server that already runs"
        yield reader.fault((urls[0],), f"the server has both `command` and `{urls[0]}`", hint, at_key=True)
    elif "command" not in given and not urls:
        hint = 'give "command" for a program that is started here, or "url" for a server that already runs'
        yield reader.fault((), "the server has neither `command` nor `url`", hint)
    elif declared == "stdio" and urls:
        hint = 'write "type": "http" (or "sse"), or give a "command"'
        yield reader.fault((type_key,), f"the transport is stdio, but there is a `{urls[0]}` and no `command`", hint)
    elif declared in ("http", "sse") and not urls:
        hint = 'write "type": "stdio", or give a "url"'
        yield reader.fault((type_key,), f"the transport is {declared}, but there is a `command` and no `url`", hint)


def _disagreement(
    given: Mapping[str, object], reader: _DefinitionReader, keys: tuple[str, ...], message: str
) -> Iterator[Problem]:
    there = [key for key in keys if key in given]
    meant = {str(read_transport(given[key]) or given[key]) for key in there}
    if len(meant) > 1:
        yield reader.fault((there[1],), message, f"keep `{there[0]}` or `{there[1]}`", at_key=True)


def _client_secrets(oauth: OAuthSettings, credentials: CredentialLadder) -> list[str]:
    """The secrets of the hub at authorization servers."""
    clients = (oauth, credentials.assertion, credentials.exchange)
    given = [(one.client_secret or "", one.private_key or "") for one in clients if one is not None]
    return [text for secret, key in given for text in (secret, key if is_key_text(key) else "")]


def _transport(model: ServerFile, url: str) -> Transport:
    declared = model.type or model.transport or model.transport_type
    if declared:
        return declared
    if model.command:
        return "stdio"
    is_sse = urlsplit(url).path.rstrip("/").endswith("/sse") and not model.http_url
    return "sse" if is_sse else "http"


def _approvals(server: str, model: ServerFile) -> ApprovalMode | None:
    """The server's own setting; ``tools.holdChanged`` is its old name."""
    if "hold_changed" in model.tools.model_fields_set:
        instead = '"approvals": "hold"' if model.tools.hold_changed else '"approvals": "warn"'
        log.warning("%s: `tools.holdChanged` is an old name and will be removed: write %s instead", server, instead)
    written: ApprovalMode | None = model.approvals
    return "hold" if written is None and model.tools.hold_changed else written


def _tool_filter(model: ServerFile) -> ToolFilter:
    """Other clients list names, not patterns, so pattern characters in their lists are escaped."""
    include = tuple(map(glob.escape, model.include_tools)) or model.tools.include
    hidden = (*model.exclude_tools, *model.disabled_tools)
    return ToolFilter(include=include, exclude=(*model.tools.exclude, *map(glob.escape, hidden)))


_KEY = "[key]"  # pydantic's mark for an error in a key, not in its value
_EXPECTED = {
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
}


def validation_problems(
    error: ValidationError, model: type[BaseModel], path: KeyPath, document: Document, *, known: Expansion
) -> list[Problem]:
    """Every error of the value at ``path`` that does not fit ``model``.

    Errors in texts of ``known`` whose expansion failed are left out: the failed expansion is reported already.
    """
    return [
        _problem(details, model, path, document)
        for details in error.errors(include_url=False)
        if not known.broken((*path, *details["loc"]))
    ]


def unknown_key(path: KeyPath, known: Collection[str], document: Document) -> Problem:
    """The problem for an unknown key, with the nearest known one."""
    name = str(path[-1])
    folded = {_fold(key): key for key in known}
    near = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.6)
    nearest = folded[near[0]] if near else ""
    listed = f"the keys here are {', '.join(sorted(known, key=str.lower))}"
    hint = f"did you mean {quoted(nearest)}?" if nearest else listed
    problem = document.problem(path, f"unknown key {quoted(name)}", hint=hint, at_key=True)
    return replace(problem, rename=nearest)


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model, as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _fold(key: str) -> str:
    return re.sub(r"[-_\s]", "", key).lower()


def _problem(details: ErrorDetails, model: type[BaseModel], path: KeyPath, document: Document) -> Problem:
    inside: KeyPath = tuple(step for step in details["loc"] if step != _KEY)
    if details["type"] == "extra_forbidden":
        return unknown_key((*path, *inside), keys_of(_model_at(model, inside[:-1])), document)
    if details["type"] == "missing":
        whole, key = quoted(joined(inside[:-1])), quoted(str(inside[-1]))
        return document.problem((*path, *inside[:-1]), f"{whole} has no {key}", hint=f"add the key {key}")
    message, hint = _words(details)
    subject = quoted(joined(inside)) if inside else "this"
    return document.problem((*path, *inside), f"{subject} {message}", hint=hint, at_key=_KEY in details["loc"])


def _words(details: ErrorDetails) -> tuple[str, str]:
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        return cause.message, cause.hint
    expected = _EXPECTED.get(details["type"], "another kind of value")
    return f"must be {expected}, not {kind_of(details['input'])}", ""


def _model_at(model: type[BaseModel], inside: KeyPath) -> type[BaseModel]:
    for step in inside:
        if isinstance(step, int):
            continue
        field = next(f for name, f in model.model_fields.items() if (f.alias or name) == step)
        annotation = next(iter(get_args(field.annotation)), field.annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model
