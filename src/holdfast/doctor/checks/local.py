"""Checks that need no network: the definition, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from holdfast.config.spec import BadServer
from holdfast.core.evidence import CommandUnusable
from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Observation, found
from holdfast.doctor.diagnosis.commands import missing_interpreter, unusable
from holdfast.doctor.findings import Finding, ask_for, finding
from holdfast.doctor.reading import problem_finding
from holdfast.errors import Problem, ServerFailure
from holdfast.wire.process import environment_of, find_program

__all__ = ["CommandCheck", "DefinitionCheck"]


class DefinitionCheck(Check):
    """Whether the definition can be used, and every missing variable."""

    id: ClassVar[str] = "definition"
    looks_at: ClassVar[str] = "whether its definition can be used, and every missing variable"
    finds: ClassVar[tuple[str, ...]] = ("HF-DEFINITION", "HF-VARIABLE")

    async def look(self, case: Case) -> Observation:
        """Report every problem, not only the first."""
        server = case.server
        if not isinstance(server, BadServer):
            return Observation(case.source_map.label(case.definition.path))
        missing = {problem.variable: problem for problem in reversed(server.problems) if problem.variable}
        others = [problem for problem in server.problems if not problem.variable]
        variables = [_missing_variable(problem) for problem in reversed(missing.values())]
        return found(*variables, *(problem_finding("HF-DEFINITION", problem) for problem in others))


def _missing_variable(problem: Problem) -> Finding:
    name = problem.variable
    text = (
        f"export it in the shell that starts Holdfast (this command waits for you to paste it), "
        f"or write a default: ${{{name}:-…}}"
    )
    return finding("HF-VARIABLE", str(problem), text, ask_for(name))


class CommandCheck(Check):
    """Whether the command can be started."""

    id: ClassVar[str] = "command"
    looks_at: ClassVar[str] = "whether its command exists and can be executed"
    needs: ClassVar[tuple[str, ...]] = ("definition",)
    transports: ClassVar[tuple[str, ...]] = ("stdio",)
    finds: ClassVar[tuple[str, ...]] = (
        "HF-COMMAND-MISSING",
        "HF-COMMAND-RUN-BIT",
        "HF-COMMAND-FOLDER",
        "HF-COMMAND-INTERPRETER",
    )

    async def look(self, case: Case) -> Observation:
        """Find it as the hub does."""
        try:
            program = find_program(case.spec, environment_of(case.spec))
        except ServerFailure as failure:
            return found(unusable(case, cast("CommandUnusable", failure.evidence)))
        case.learned.program = program
        interpreter = missing_interpreter(case)
        return found(interpreter) if interpreter is not None else Observation(str(Path(program)))
