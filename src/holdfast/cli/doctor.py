"""``holdfast doctor``: why a server does not work, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.doctor_view import print_code, print_report
from holdfast.cli.output import data_console, print_json, working
from holdfast.config.reading import Reading
from holdfast.doctor.codes import CODES
from holdfast.doctor.reading import check_names, code_named, read_or_report
from holdfast.doctor.report import Report, ServerReport
from holdfast.errors import UsageError

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

EXPLAIN = "explain"

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="SERVER", help="Only these servers; or: explain CODE", show_default=False),
]


@app.command()
def doctor(
    names: Names = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="S",
            help="Seconds for each server [default: holdfast.load.attemptTimeout]",
            min=0.1,
            max=3600,
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the safe repairs, and show what was changed")] = False,
    list_checks: Annotated[bool, typer.Option("--list-checks", help="List the checks without running them")] = False,
) -> None:
    """Check all servers at the same time, and show how to fix each problem.

    `holdfast doctor explain HF-REFUSED` explains a code.
    The whole run takes as long as the slowest server.

    Exit code 0: nothing failed, or nothing is configured. 1: something failed. 2: wrong usage.
    """
    if list_checks:
        _list_checks()
        return
    if names and names[0] == EXPLAIN:
        _explain(names[1:])
        return
    read = read_or_report(config)
    if isinstance(read, Reading):
        check_names(names or [], read)
        report = anyio.run(_examine, read, names or [], timeout, fix)
    else:
        report = read
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_report(report)
    raise typer.Exit(0 if report.ok else 1)


async def _examine(reading: Reading, names: list[str], seconds: float | None, fix: bool) -> Report:
    from holdfast.doctor.run import Doctor  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    waiting = [d.server.id for d in reading.definitions if (d.server.id in names if names else d.server.enabled)]
    total = len(waiting)

    def on_server(report: ServerReport) -> None:
        if report.id in waiting:
            waiting.remove(report.id)
            moving.update(_progress(waiting, total))

    with working(_progress(waiting, total)) as moving:
        return await Doctor(reading, timeout=seconds, fix=fix).examine(names, on_server=on_server)


def _progress(waiting: list[str], total: int) -> str:
    if not waiting:
        return f"{total} of {total} servers checked"
    names = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    return f"{total - len(waiting)} of {total} servers checked; waiting for {names}"


def _explain(codes: list[str]) -> None:
    if not codes:
        raise UsageError(
            "no code given", hint=f"for example `holdfast doctor explain HF-REFUSED`; codes: {', '.join(CODES)}"
        )
    for code in [code_named(code) for code in codes]:
        print_code(code)


def _list_checks() -> None:
    from holdfast.doctor.checks.all import CHECKS, WHOLE_CHECKS  # noqa: PLC0415 - as above

    console = data_console()
    console.print("For each server:")
    for check in CHECKS:
        after = f" (after {', '.join(check.needs)})" if check.needs else ""
        console.print(f"  {check.id:<11}{check.looks_at}{after}", soft_wrap=True)
        _list_codes(console, check.finds)
    console.print("Once for each run:")
    for whole in WHOLE_CHECKS:
        console.print(f"  {whole.id:<11}{whole.looks_at}", soft_wrap=True)
        _list_codes(console, whole.finds)


def _list_codes(console: Console, codes: tuple[str, ...]) -> None:
    console.print(Padding(Text(" ".join(codes), style="dim"), (0, 0, 0, 13)))
