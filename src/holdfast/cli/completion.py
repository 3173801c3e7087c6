"""``holdfast completion``: print the completion script for a shell; and the candidates that the scripts ask for.

The scripts are a few lines each. They run ``holdfast __complete WORDS…`` at each Tab, which prints one candidate a
line, with its description after a tab. A line ``:files`` asks the shell for file names.

Typer has completion of its own. It is not used, because its script for zsh evaluates what the program prints, and a
name that is printed may come from a server. These scripts take each line as data: no name can run anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import anyio
import typer

import holdfast.config
import holdfast.control
import holdfast.doctor
from holdfast.cli.command_options import ask, found_hub
from holdfast.cli.entry import COMMANDS
from holdfast.cli.runner import command_named
from holdfast.errors import HoldfastError, UsageError
from holdfast.serve import config_in

if TYPE_CHECKING:
    from holdfast.control import ControlClient

__all__ = ["candidates", "completion", "main"]

HUB_SECONDS = 1.0
"""How long a running hub has to answer. A Tab must not hang."""

FILES = ":files"

_FILE_METAVARS = ("FILE", "PATH", "URL|FILE")

_BASH = """\
# bash completion for holdfast. To use it: source <(holdfast completion bash)
_holdfast() {
    local value description
    COMPREPLY=()
    while IFS=$'\\t' read -r value description; do
        if [[ $value == :files ]]; then
            compopt -o default
        else
            COMPREPLY+=("$(printf '%q' "$value")")
        fi
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _holdfast holdfast
"""

_ZSH = """\
#compdef holdfast
# zsh completion for holdfast. To use it: source <(holdfast completion zsh)
_holdfast() {
    local value description
    local -a values descriptions
    while IFS=$'\\t' read -r value description; do
        if [[ $value == :files ]]; then
            _files
        else
            values+=("$value")
            descriptions+=("$value${description:+  -- $description}")
        fi
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( $#values )) && compadd -l -d descriptions -- "${values[@]}"
}
if [[ $funcstack[1] == _holdfast ]]; then
    _holdfast "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _holdfast holdfast
fi
"""

_FISH = """\
# fish completion for holdfast. To use it: holdfast completion fish | source
function __holdfast_complete
    set -l current (commandline --current-token --cut-at-cursor)
    set -l words (commandline --tokenize --cut-at-cursor --current-process) $current
    for line in ($words[1] __complete $words[2..] 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path $current
        else
            printf '%s\\n' $line
        end
    end
end
complete --command holdfast --no-files --arguments '(__holdfast_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


class Candidate(NamedTuple):
    """One word that can stand at the cursor."""

    value: str
    description: str = ""

    def __str__(self) -> str:
        words = " ".join(self.description.split())
        return f"{self.value}\t{words}" if words else self.value


def completion(
    shell: Annotated[str | None, typer.Argument(metavar="bash|zsh|fish", help="Default: your own shell")] = None,
) -> None:
    """Print the completion script for a shell. It completes commands, options, servers and tools.

    bash, in ~/.bashrc: source <(holdfast completion bash)

    zsh, in ~/.zshrc: source <(holdfast completion zsh)

    fish, in ~/.config/fish/config.fish: holdfast completion fish | source
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        raise UsageError(f"there is no completion for the shell `{name}`", hint=f"known: {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[name])


def main(words: Sequence[str]) -> int:
    """Print the candidates for the last of the words. A shell ignores errors here, and so does this."""
    try:
        for candidate in candidates(list(words) or [""]):
            print(candidate)  # noqa: T201 - this is the output
    except (HoldfastError, OSError, ValueError):
        return 1
    return 0


def candidates(words: Sequence[str]) -> list[Candidate]:
    """The candidates for the last word; it may be empty."""
    *before, current = words
    if not before:
        named = [Candidate(name, summary) for name, (_, summary) in COMMANDS.items()]
        return _starting(current, [*named, Candidate("--help"), Candidate("--version")])
    if before[0] not in COMMANDS:
        return []
    command = command_named(before[0])
    path = [before[0]]
    rest = before[1:]
    while hasattr(command, "commands"):
        if not rest:
            named = [Candidate(one.name, one.get_short_help_str(80)) for one in command.commands.values()]
            return _starting(current, [*named, *_options(command)])
        if rest[0] not in command.commands:
            return []
        path, command, rest = [*path, rest[0]], command.commands[rest[0]], rest[1:]
    return _starting(current, _of_command(command, tuple(path), rest, current))


def _options(command: Any) -> Iterator[Candidate]:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("--"):
                    yield Candidate(name, getattr(parameter, "help", "") or "")
    yield Candidate("--quiet", "Print results and errors, and no notes")
    yield Candidate("--help", "Show this help")


def _of_command(command: Any, path: tuple[str, ...], before: Sequence[str], current: str) -> Iterable[Candidate]:
    positional, waiting = _read(command, before)
    if waiting is not None:
        return _values(waiting)
    if current.startswith("-"):
        return _options(command)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if not arguments:
        return _options(command)
    at = min(len(positional), len(arguments) - 1)
    if at < len(positional) and arguments[at].nargs != -1:
        return []
    config = config_in(before)
    return _words_for(str(arguments[at].metavar), path, positional, Path(config) if config else None)


def _read(command: Any, words: Sequence[str]) -> tuple[list[str], Any]:
    """The positional words, and the option that still waits for its value."""
    takes_value = {
        name: parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
        for name in parameter.opts
    }
    positional: list[str] = []
    waiting = None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word in takes_value:
            waiting = takes_value[word]
        elif not word.startswith("-") or word == "-":
            positional.append(word)
    return positional, waiting


def _values(option: Any) -> list[Candidate]:
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if get_origin(kind) is Literal:
        return [Candidate(str(choice)) for choice in get_args(kind)]
    return [Candidate(FILES)] if option.metavar in _FILE_METAVARS else []


def _words_for(metavar: str, path: tuple[str, ...], before: Sequence[str], config: Path | None) -> list[Candidate]:
    match metavar:
        case "SERVER" if path[0] == "demo":
            from holdfast.demo_servers import FAULTS  # noqa: PLC0415 - slow to import, and of the demo alone

            return [Candidate(name) for name in FAULTS]
        case "SERVER":
            return _servers(path, before, config)
        case "TOOL":
            return [Candidate(name) for name in _tools(before[0] if before else "", config)]
        case "CLIENT":
            return [
                Candidate(name, client.title) for name, client in holdfast.config.CLIENTS.items() if name not in before
            ]
        case "bash|zsh|fish":
            return [Candidate(name) for name in SCRIPTS]
        case "FILE" | "PATH":
            return [Candidate(FILES)]
        case _:
            return []


def _servers(path: tuple[str, ...], before: Sequence[str], config: Path | None) -> list[Candidate]:
    if path == ("doctor",) and before[:1] == ["explain"]:
        return [Candidate(name, code.means) for name, code in holdfast.doctor.CODES.items() if name not in before]
    explain = [Candidate("explain", "Explain a code")] if path == ("doctor",) and not before else []
    told = _ask_hub(config, holdfast.control.ControlClient.servers)
    if told is None:
        names = dict.fromkeys(holdfast.config.load_config(config).servers, "")
    else:
        names = {server.id: server.state.replace("_", " ") for server in told.servers}
    return [*(Candidate(name, words) for name, words in names.items() if name not in before), *explain]


def _starting(current: str, found: Iterable[Candidate]) -> list[Candidate]:
    return [one for one in found if one.value.startswith(current) or one.value == FILES]


# Names

_Told = TypeVar("_Told")


def _tools(server: str, config: Path | None) -> list[str]:
    told = _ask_hub(config, holdfast.control.ControlClient.catalog)
    return [] if told is None else sorted(tool.original for tool in told.tools if tool.server == server)


def _ask_hub(config: Path | None, read: Callable[[ControlClient], Awaitable[_Told]]) -> _Told | None:
    """What a running hub tells; None if none does in time."""

    async def in_time(control: ControlClient) -> _Told | None:
        with anyio.move_on_after(HUB_SECONDS):
            return await read(control)
        return None

    try:
        return ask(found_hub(None, config), in_time)
    except HoldfastError:
        return None
