"""Codes about this machine: the configuration, the command, its process."""

from __future__ import annotations

from holdfast.doctor.codes.code import Code

__all__ = ["COMMAND", "CONFIGURATION"]

CONFIGURATION = (
    Code(
        "HF-CONFIG",
        "error",
        "The configuration file cannot be used as a whole",
        "It cannot be read, is not JSON, or has an unknown key or setting.",
        "Correct the file at the named line and column.",
    ),
    Code(
        "HF-DEFINITION",
        "error",
        "The server's definition cannot be used",
        "A key is misspelt, a value has the wrong type, or two keys contradict each other.",
        "Correct the file at the named line and column.",
    ),
    Code(
        "HF-VARIABLE",
        "error",
        "An environment variable that the definition names is not set",
        "The definition uses ${NAME}, and the variable is not set in the shell that started Holdfast.",
        "Export it, or write a default: ${NAME:-default}. Every missing variable is listed.",
    ),
    Code(
        "HF-FILE-READABLE",
        "warning",
        "Other users can read a file with secrets",
        "The configuration or an envFile contains credentials, and its mode allows others to read it.",
        "Change its mode: chmod 600. `holdfast doctor --fix` does it.",
    ),
    Code(
        "HF-TOKENS-CORRUPT",
        "warning",
        "The token store is damaged",
        "The disk was full, or another program wrote to it. No login can be read from it.",
        "Set it aside and log in again. `holdfast doctor --fix` sets it aside and deletes nothing.",
    ),
    Code(
        "HF-STATE-CORRUPT",
        "warning",
        "The hub's state file is damaged",
        "The disk was full, or another program wrote to it.",
        "Set it aside; the hub writes a new one. `holdfast doctor --fix` does it and deletes nothing.",
    ),
)

COMMAND = (
    Code(
        "HF-COMMAND-MISSING",
        "error",
        "The command was not found",
        "It is not installed, is misspelt, or is not on the PATH that Holdfast was started with.",
        "Install the package that contains it, or write the right name or the full path into `command`.",
    ),
    Code(
        "HF-COMMAND-RUN-BIT",
        "error",
        "The command is not executable",
        "The file exists and lacks the execute permission.",
        "chmod +x",
    ),
    Code(
        "HF-COMMAND-FOLDER",
        "error",
        "The working folder of the command does not exist",
        "`cwd` is misspelt, or relative to another folder than expected.",
        "Create the folder, or correct `cwd`.",
    ),
    Code(
        "HF-COMMAND-FORMAT",
        "error",
        "The command is not a program",
        "It is a script without a first line such as #!/bin/sh, or a program for another processor.",
        "Add that line, or write the interpreter into `command` and the script into `args`.",
    ),
    Code(
        "HF-COMMAND-INTERPRETER",
        "error",
        "The interpreter of a script does not exist",
        "The first line of the script names a program that does not exist, often in a moved virtual environment.",
        "Install that interpreter, or correct the script's first line.",
    ),
    Code(
        "HF-COMMAND-START",
        "error",
        "The command could not be started",
        "The system refused to start it, for the named reason.",
        "Start it by hand to see the error, and remove the cause.",
    ),
    Code(
        "HF-EXITED",
        "error",
        "The server's process ended before it was ready",
        "It failed; the end of its stderr is shown.",
        "Run its command by hand, and provide what it asks for.",
    ),
    Code(
        "HF-EXIT-VARIABLE",
        "error",
        "The server's process ended and named an environment variable",
        "Servers get a minimal environment and the variables in `env`, not the environment of your shell.",
        'Add it to the definition: "env": {"NAME": "${env:NAME}"}, and export it.',
    ),
    Code(
        "HF-EXIT-RUNTIME",
        "error",
        "The server needs another version of Node or Python",
        "The first one on PATH is too old or too new.",
        "Install the version that it needs, or write that program's full path into `command`.",
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
        "The package of the server does not exist",
        "npx or uvx did not find it in the registry: its name is misspelt, or it is private.",
        "Correct its name in `args`.",
    ),
    Code(
        "HF-KILLED",
        "error",
        "The server's process was killed",
        "A user or a program ended it, or the system was out of memory.",
        "Try again; if it happens again, look at the system's log.",
    ),
    Code(
        "HF-STDOUT-ONLY",
        "error",
        "The command prints text on stdout that is not MCP",
        "It is not an MCP server, or it needs an argument to start as one.",
        "Correct `command` and `args`.",
    ),
    Code(
        "HF-STDOUT-NOISE",
        "warning",
        "The server prints other text on stdout besides MCP",
        "It logs there. Holdfast skips such lines; other clients may fail.",
        "Make it log to stderr.",
    ),
)
