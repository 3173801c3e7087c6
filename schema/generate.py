"""Writes the JSON Schemas that are published here: ``python -m schema.generate``.

One is of the configuration file, one of doctor's report, and one of the ``--json`` output of each command. Each is made
from the models that the program itself uses, or from ``command_outputs.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from holdfast.cli.output import JSON_VERSION
from holdfast.config.fields import format_duration
from holdfast.config.file_models import SERVER_KEYS, TOP_KEYS, ConfigFile
from holdfast.doctor.report import VERSION, Report
from schema.command_outputs import OUTPUTS

__all__ = ["command_schema", "config_schema", "report_schema", "schemas"]

HERE = Path(__file__).parent
DRAFT = "https://json-schema.org/draft/2020-12/schema"

_NAMES = {
    "ServerFile": "server",
    "ToolsFile": "tools",
    "OAuthFile": "oauth",
}
_URLS = [{"required": [key]} for key in ("url", "serverUrl", "httpUrl")]


def schemas() -> dict[Path, str]:
    """Every schema as it is checked in: its file, and its text."""
    made = {HERE / "holdfast.schema.json": config_schema(), HERE / "doctor.schema.json": report_schema()}
    made |= {HERE / "commands" / f"{name.replace(' ', '-')}.schema.json": command_schema(name) for name in OUTPUTS}
    return {file: json.dumps(one, indent=2, ensure_ascii=False) + "\n" for file, one in made.items()}


def report_schema() -> dict[str, Any]:
    """The schema of doctor's report, as draft 2020-12."""
    schema = Report.model_json_schema(mode="serialization")
    schema["properties"]["version"] = {"const": VERSION, "description": "The version of this schema"}
    return {"$schema": DRAFT, **schema, "title": "What `holdfast doctor --json` prints"}


def command_schema(command: str) -> dict[str, Any]:
    """The schema of a command's output, as draft 2020-12."""
    if OUTPUTS[command] is None:
        return report_schema()
    made = TypeAdapter(OUTPUTS[command]).json_schema(mode="serialization")
    for definition in [made, *made.get("$defs", {}).values()]:
        if definition.get("properties", {}).get("version", {}).get("type") == "integer":  # a hub has a version too
            definition["properties"]["version"] = {"const": JSON_VERSION, "description": "The version of this output"}
    return {
        "$schema": DRAFT,
        "title": f"The output of `holdfast {command} --json`",
        **{key: value for key, value in made.items() if key != "title"},
    }


def config_schema() -> dict[str, Any]:
    """The schema of the configuration file, as draft 2020-12."""
    schema = _tidy(ConfigFile.model_json_schema())
    definitions = schema["$defs"] = dict(sorted(schema["$defs"].items()))
    server = definitions["server"]
    _allow_foreign(schema, TOP_KEYS)
    _allow_foreign(server, SERVER_KEYS)
    server["oneOf"] = [{"required": ["command"]}, {"anyOf": _URLS}, {"required": ["hub"]}]
    tools = server["properties"]["tools"]
    tools["anyOf"] = [{"$ref": tools.pop("$ref")}, {"type": "array", "items": {"type": "string"}}]
    oauth = server["properties"]["oauth"]
    oauth["anyOf"] = [{"$ref": oauth.pop("$ref")}, {"type": "boolean"}]
    for key in ("mcpServers", "servers"):
        schema["properties"][key]["propertyNames"] = {"pattern": r"^(?=.*\S)[^\u0000-\u001f\u007f]+$"}
    return {
        "$schema": DRAFT,
        "title": "Holdfast configuration",
        **schema,
    }


def _allow_foreign(schema: dict[str, Any], keys: Mapping[str, str]) -> None:
    for key, whose in keys.items():
        schema["properties"][key] = {"description": f"Accepted and ignored: {whose}."}


def _tidy(schema: Any) -> Any:
    """Pydantic's schema without titles, null types and other noise."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return _renamed(schema) if isinstance(schema, str) else schema
    if set(schema) >= {"default", "description"}:
        schema = _with_readable_default(schema)
    result = {_NAMES.get(key, key): _tidied(key, value) for key, value in schema.items() if not _is_noise(key, value)}
    if len(result.get("anyOf", ())) == 1:
        result |= result.pop("anyOf")[0]
    return result


def _tidied(key: str, value: Any) -> Any:
    """The value of a key. Keys of the file are no keywords of the schema: one of them is called `default`."""
    return {name: _tidy(one) for name, one in value.items()} if key == "properties" else _tidy(value)


def _is_noise(key: str, value: object) -> bool:
    return (key == "title" and isinstance(value, str)) or (
        key == "default" and (value in (None, [], "") or isinstance(value, dict))
    )


def _renamed(text: str) -> str:
    prefix, _, name = text.rpartition("/")
    return f"{prefix}/{_NAMES[name]}" if prefix == "#/$defs" and name in _NAMES else text


def _with_readable_default(schema: Mapping[str, Any]) -> dict[str, Any]:
    default = schema["default"]
    patterns = [kind.get("pattern", "") for kind in schema.get("anyOf", ())]
    if isinstance(default, float) and any("ms|" in pattern for pattern in patterns):
        default = format_duration(default)
    elif isinstance(default, list):
        default = [format_duration(item) if isinstance(item, float) else item for item in default]
    elif isinstance(default, int) and any("MiB" in pattern for pattern in patterns):
        default = _size(default)
    return {**schema, "default": default}


def _size(size: int) -> str:
    """The shortest spelling of a size that the configuration reads."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return f"{size}B"


if __name__ == "__main__":
    for file, text in schemas().items():
        file.write_text(text, encoding="utf-8")
