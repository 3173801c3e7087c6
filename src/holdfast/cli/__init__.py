"""The command line: one file for a command or a family of commands, each thin.

A package that is slow to import is named by its attributes (``holdfast.hub.Loader``): its ``__init__`` imports the
module of a name when the name is used. So wrong usage and a bad configuration do not wait for it.
"""

from holdfast.cli.entry import main

__all__ = ["main"]
