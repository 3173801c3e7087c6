"""Runs programs one after the other in one process: importing a framework takes longer than all that they do.

It prints one JSON object: by the path of each program, what that printed, and the traceback if it failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback


def run(program: str) -> dict[str, str]:
    said, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(program, run_name="__main__")
        except BaseException:  # noqa: BLE001 - the test fails with it, and the next program runs all the same
            failed = traceback.format_exc()
    return {"said": said.getvalue(), "failed": failed}


sys.stdout.write(json.dumps({program: run(program) for program in sys.argv[1:]}) + "\n")
