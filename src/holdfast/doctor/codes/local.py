"""Codes about this machine: the configuration, the command, its process."""

from __future__ import annotations

from holdfast.doctor.codes.code import Code

__all__ = ["COMMAND", "CONFIGURATION"]

CONFIGURATION = (
    Code(
        "HF-CONFIG",
        "error",
        "The configuration file cannot be used as a whole",
        "It cannot be read, is not JSON, or has a key or a setting that nobody knows.",
        "Correct the place that is named: file, line and column.",
    ),
    Code(
        "HF-DEFINITION",
        "error",
        "The server's definition cannot be used",
        "A key is misspelt, a value is of the wrong kind, or two keys contradict each other.",
        "Correct the place that is named: file, line and column.",
    ),
    Code(
        "HF-VARIABLE",
        "error",
        "An environment variable that the definition names is not set",
        "The definition says ${NAME} and there is no such variable where Holdfast was started.",
        "Export it, or give a default: ${NAME:-default}. Every missing one is listed.",
    ),
    Code(
        "HF-FILE-READABLE",
        "warning",
        "A file with secrets in it can be read by other users",
        "The configuration, or an envFile, holds credentials, and its mode lets others read it.",
        "Take the right away: chmod 600. `holdfast doctor --fix` does it.",
    ),
    Code(
        "HF-TOKENS-CORRUPT",
        "warning",
        "The token store is damaged",
        "The disk was full, or something else wrote to it. No login can be read from it.",
        "Set it aside and log in again. `holdfast doctor --fix` does the first, and deletes nothing.",
    ),
    Code(
        "HF-STATE-CORRUPT",
        "warning",
        "The hub's state file is damaged",
        "The disk was full, or something else wrote to it.",
        "Set it aside: a new one is written. `holdfast doctor --fix` does it, and deletes nothing.",
    ),
)

COMMAND = (
    Code(
        "HF-COMMAND-MISSING",
        "error",
        "The command was not found",
        "It is not installed, is misspelt, or is not on the PATH that Holdfast was started with.",
        "Install what has it, or write the right name or its full path into `command`.",
    ),
    Code(
        "HF-COMMAND-RUN-BIT",
        "error",
        "The command may not be executed",
        "The file is there and lacks its run bit.",
        "chmod +x",
    ),
    Code(
        "HF-COMMAND-FOLDER",
        "error",
        "The folder that the command is to run in does not exist",
        "`cwd` is misspelt, or relative to another folder than was thought.",
        "Make the folder, or correct `cwd`.",
    ),
    Code(
        "HF-COMMAND-FORMAT",
        "error",
        "The command is not a program",
        "A script without a first line such as #!/bin/sh, or a program for another kind of machine.",
        "Add the line, or name the interpreter as `command` and the script in `args`.",
    ),
    Code(
        "HF-COMMAND-INTERPRETER",
        "error",
        "The interpreter that a script asks for does not exist",
        "The first line of the script names a program that is not here: often a virtual environment that was moved.",
        "Install that interpreter, or correct the script's first line.",
    ),
    Code(
        "HF-COMMAND-START",
        "error",
        "The command could not be started",
        "The system refused, for the reason that is named.",
        "Start it by hand to see the same, and remove the cause.",
    ),
    Code(
        "HF-EXITED",
        "error",
        "The server's process ended before it was ready",
        "It failed by itself; its last words on stderr are shown.",
        "Run its command by hand, and give it what it asks for.",
    ),
    Code(
        "HF-EXIT-VARIABLE",
        "error",
        "The server's process ended and named an environment variable",
        "Servers get a minimal environment and what `env` names, never all that is exported in your shell.",
        'Name it in the definition: "env": {"NAME": "${env:NAME}"}, and export it.',
    ),
    Code(
        "HF-EXIT-RUNTIME",
        "error",
        "The server wants another version of Node or Python",
        "The one that is first on PATH is too old, or too new, for it.",
        "Install the version that it asks for, or name that program's full path in `command`.",
    ),
    Code(
        "HF-EXIT-MODULE",
        "error",
        "The server's program lacks a module",
        "It is not installed for the Python or Node that runs the server.",
        "Install it there.",
    ),
    Code(
        "HF-EXIT-PACKAGE",
        "error",
        "The package that is to be run does not exist",
        "npx or uvx looked for it in the registry and did not find it: its name is misspelt, or it is private.",
        "Correct its name in `args`.",
    ),
    Code(
        "HF-KILLED",
        "error",
        "The server's process was killed from outside",
        "Somebody ended it, or the system did for want of memory.",
        "Try again; if it happens again, look at the system's log.",
    ),
    Code(
        "HF-STDOUT-ONLY",
        "error",
        "The command prints something else than MCP on stdout",
        "It is no MCP server, or needs an argument to become one.",
        "Correct `command` and `args`.",
    ),
    Code(
        "HF-STDOUT-NOISE",
        "warning",
        "The server prints other things on stdout beside MCP",
        "It logs there. Holdfast passes over such lines; other clients may fail on them.",
        "Let it log to stderr.",
    ),
)
