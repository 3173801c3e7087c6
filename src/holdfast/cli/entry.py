"""``holdfast``: the list of commands, and the way to each.

Help and version are told from this file alone, so that they cost no more than starting Python;
a command's own module, and whatever it needs, is imported when it is called (PERF-5).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "serve": ("holdfast.cli.serve", "Serve all servers behind one MCP endpoint, over HTTP or stdio"),
    "status": ("holdfast.cli.status", "Show how the servers of a running hub are, once or live"),
    "reconnect": ("holdfast.cli.reconnect", "Connect to servers anew, now"),
    "enable": ("holdfast.cli.enable", "Switch servers of a running hub on"),
    "disable": ("holdfast.cli.disable", "Switch servers of a running hub off"),
    "logs": ("holdfast.cli.logs", "Show what a server wrote, and what the hub noted of it"),
    "approve": ("holdfast.cli.approve", "Look at tools that say something else than before, and approve it"),
    "doctor": ("holdfast.cli.doctor", "Check every server, and say how to mend what is broken"),
    "tools": ("holdfast.cli.tools", "List every server's tools, and why the others have none"),
    "call": ("holdfast.cli.call", "Call one tool of one server"),
    "login": ("holdfast.cli.login", "Log in to a server that asks for it"),
    "logout": ("holdfast.cli.logout", "Forget a server's login"),
    "auth": ("holdfast.cli.auth", "Show which servers you are logged in to, and for how long"),
    "demo": ("holdfast.cli.demo", "Break and heal the demo fleet that `serve` runs, and see what a client sees"),
    "import": ("holdfast.cli.import_", "Copy other clients' servers, and point the clients at the hub"),
    "config": ("holdfast.cli.config", "Show the configuration that is in force, and where each value came from"),
    "gateway": ("holdfast.cli.gateway", "Render AgentGateway's configuration, or keep it in step with its targets"),
}
"""Each command: the module whose ``app`` runs it, and what it is for."""

USAGE = 2
"""The exit code for a command that was called wrongly."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main() -> None:
    """Run the command line and exit."""
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before a command could take care of it itself
        code = INTERRUPTED
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run one command; returns the exit code."""
    name = argv[0] if argv else "--help"
    if name in ("--help", "-h", "help"):
        return _print(help_text())
    if name in ("--version", "-V"):
        from holdfast._version import __version__  # noqa: PLC0415 - see the module's docstring

        return _print(f"holdfast {__version__}\n")
    if name not in COMMANDS:
        return _unknown(name)
    return _run_command(name, argv[1:])


def help_text() -> str:
    """What ``holdfast --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return f"""\
Usage: holdfast COMMAND [OPTIONS]

Keeps a fleet of MCP servers available, and tells the truth about those that are not.

Commands:
{lines}

Options:
  -h, --help     Show this help; `holdfast COMMAND --help` shows a command's
  -V, --version  Show the version

The servers are those of an mcp.json: --config FILE, $HOLDFAST_CONFIG, ./mcp.json, ./.mcp.json,
./.vscode/mcp.json, or mcp.json in your configuration folder for holdfast.
"""


def _run_command(name: str, argv: list[str]) -> int:
    from holdfast.cli.running import run_app  # noqa: PLC0415 - see the module's docstring

    return run_app(lambda: import_module(COMMANDS[name][0]).app, argv, program=f"holdfast {name}")


def _unknown(name: str) -> int:
    from difflib import get_close_matches  # noqa: PLC0415 - see the module's docstring

    near = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `holdfast {near[0]}`?" if near else "`holdfast --help` lists the commands"
    sys.stderr.write(f"error: there is no command `{name}`\n\nhint: {hint}\n")
    return USAGE


def _print(text: str) -> int:
    """Print, and give the exit code; a reader that went away (``| head``) is no error, a full disk is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(exc, BrokenPipeError) else 1
    return 0


if __name__ == "__main__":
    main()
