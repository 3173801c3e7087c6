"""``python -m holdfast`` is ``holdfast``."""

from holdfast.cli import main

main()
