"""Joins the hub that its user runs, or starts one: the same as ``holdfast serve --stdio``."""

import sys

from holdfast.cli.entry import main

if __name__ == "__main__":
    sys.argv[1:] = ["serve", "--stdio"]
    main()
