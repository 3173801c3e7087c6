"""``holdfast``: the list of commands, and the entry point.

Help and version come from this file alone, so that they cost little more than a start of Python.
The module of a command is imported when the command runs (PERF-5).
"""

from __future__ import annotations

import os
import sys

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "setup": ("setup:setup", "Set everything up in one conversation"),
    "serve": ("service:serve", "Serve all servers at one MCP endpoint, over HTTP or stdio"),
    "stop": ("service:stop", "End the hub that runs in the background"),
    "status": ("servers:status", "Show the servers of a running hub, once or live"),
    "reconnect": ("servers:reconnect", "Reconnect servers now"),
    "enable": ("servers:enable", "Enable servers of a running hub"),
    "disable": ("servers:disable", "Disable servers of a running hub"),
    "logs": ("servers:logs", "Show the stderr of a server, and the hub's log of it"),
    "approve": ("approve:approve", "Show tools that changed, and approve the changes"),
    "check": ("readiness:check", "Check that servers and tools are ready, and wait for them"),
    "access": ("access:access_app", "Say what the access rules decide, and test them"),
    "audit": ("access:audit_app", "Show who did what, and check that no record was changed"),
    "doctor": ("doctor:doctor", "Check every server, and show how to fix problems"),
    "add": ("config:add", "Add a server to your mcp.json, and try it"),
    "remove": ("config:remove", "Remove servers from your mcp.json"),
    "list": ("config:list_servers", "List the servers of an mcp.json"),
    "tools": ("tools:tools", "List the tools of every server, or why it has none"),
    "find": ("tools:find", "Find tools by what they do, and whether they work now"),
    "call": ("tools:call", "Call one tool of one server"),
    "login": ("logins:login", "Log in to a server that requires it"),
    "logout": ("logins:logout", "Remove the login of a server"),
    "auth": ("logins:auth_app", "Show your logins, and how long they last"),
    "demo": ("demo:app", "Break and repair demo servers, and see what clients see"),
    "trust": ("trust:trust", "Trust the mcp.json of a project, so that it is used"),
    "import": ("setup:import_", "Copy the servers of your MCP clients, and connect them"),
    "service": ("service:app", "Run the hub in the background, with systemd or launchd"),
    "uninstall": ("setup:uninstall", "Give your clients their servers back, and end the hub"),
    "completion": ("completion:completion", "Print the completion script for bash, zsh or fish"),
    "gateway": ("gateway:app", "Render AgentGateway's configuration, or keep it fresh"),
}
"""Each command: its module and the function or the group of subcommands in it, and its summary."""

USAGE = 2
"""The exit code for wrong usage."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main() -> None:
    """Run the command line and exit."""
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before a command handles it itself
        code = INTERRUPTED
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run one command; returns the exit code."""
    name = argv[0] if argv else "--help"
    if name == "help" and argv[1:]:
        return run([*argv[1:], "--help"])
    if name in ("--help", "-h", "help"):
        return _print(help_text())
    if name in ("--version", "-V"):
        from holdfast._version import __version__  # noqa: PLC0415 - see the module's docstring

        return _print(f"holdfast {__version__}\n")
    if name == "__complete":  # what the completion scripts ask at each Tab
        from holdfast.cli.completion import main as complete  # noqa: PLC0415 - see the module's docstring

        return complete(argv[1:])
    if name not in COMMANDS:
        return _unknown(name)
    if name == "serve" and "--stdio" in argv:
        from holdfast.serve import JoinOptions, join_hub  # noqa: PLC0415 - nothing heavy: every client runs it

        joins = JoinOptions.read(argv[1:], os.environ)
        if joins is not None and joins.is_plain:
            return join_hub(joins)
    return _run_command(name, argv[1:])


GROUPS = {
    "Begin": ("setup", "import", "add", "remove", "list", "trust", "uninstall"),
    "Run": ("serve", "stop", "service", "demo"),
    "Look": ("status", "check", "doctor", "logs"),
    "Use": ("tools", "find", "call"),
    "Operate": ("reconnect", "enable", "disable", "approve", "login", "logout", "auth"),
}
"""The commands of the help, by what a person wants to do. What stands in none of them comes last."""


def help_text() -> str:
    """What ``holdfast --help`` prints."""
    width = max(map(len, COMMANDS))
    groups = {title: [name for name in names if name in COMMANDS] for title, names in GROUPS.items()}
    named = {name for names in groups.values() for name in names}
    groups["More"] = [name for name in COMMANDS if name not in named]
    lines = "\n\n".join(
        f"{title}:\n" + "\n".join(f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names)
        for title, names in groups.items()
    )
    return f"""\
Usage: holdfast COMMAND [OPTIONS]

Keeps your MCP servers available, and says why one is not.

{lines}

Options:
  -h, --help     Show this help; `holdfast help COMMAND` shows that of a command
  -V, --version  Show the version

The servers come from an mcp.json: --config FILE, $HOLDFAST_CONFIG, ./mcp.json,
./.mcp.json, ./.vscode/mcp.json, or mcp.json in the configuration folder of
Holdfast.
"""


def _run_command(name: str, argv: list[str]) -> int:
    from holdfast.serve import isolate  # noqa: PLC0415 - see the module's docstring

    isolate()  # first: what is imported next takes a while
    from holdfast.cli.runner import command_named, run_command  # noqa: PLC0415 - see the module's docstring

    return run_command(lambda: command_named(name), argv, program=f"holdfast {name}")


def _unknown(name: str) -> int:
    from difflib import get_close_matches  # noqa: PLC0415 - see the module's docstring

    from holdfast.serve import typed_command  # noqa: PLC0415 - see the module's docstring

    near = get_close_matches(name, COMMANDS, n=1)
    program = typed_command()
    hint = f"did you mean `{program} {near[0]}`?" if near else f"`{program} --help` lists the commands"
    sys.stderr.write(f"error: there is no command `{name}`\n\nhint: {hint}\n")
    return USAGE


def _print(text: str) -> int:
    """Print, and return the exit code. A closed pipe (``| head``) is no error; a full disk is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(exc, BrokenPipeError) else 1
    return 0


if __name__ == "__main__":
    main()
