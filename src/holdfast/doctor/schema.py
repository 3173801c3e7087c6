"""The published JSON Schema of ``doctor --json``, generated from the report's models.

``python -m holdfast.doctor.schema FILE`` writes it; without a file it goes to standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from holdfast.doctor.report import VERSION, Report

__all__ = ["report_schema", "schema_text"]


def report_schema() -> dict[str, Any]:
    """The schema, as draft 2020-12."""
    schema = Report.model_json_schema(mode="serialization")
    schema["properties"]["version"] = {"const": VERSION, "description": "The version of this schema"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "What `holdfast doctor --json` prints",
    }


def schema_text() -> str:
    """The schema as it is checked in."""
    return json.dumps(report_schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> None:
    """Write the schema to the file that is named, or to standard output."""
    if arguments:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())


if __name__ == "__main__":
    main(sys.argv[1:])
