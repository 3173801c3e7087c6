"""``python -m holdfast`` is ``holdfast``."""

from holdfast.cli.entry import main

main()
