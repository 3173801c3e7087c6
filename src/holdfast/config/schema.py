"""The published JSON Schema of the configuration file, generated from the models.

``python -m holdfast.config.schema FILE`` writes it; without a file it goes to standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.fields import format_duration, format_size
from holdfast.config.file_models import SERVER_KEYS, TOP_KEYS, ConfigFile

__all__ = ["config_schema", "schema_text"]

_NAMES = {
    "ServerFile": "server",
    "ToolsFile": "tools",
    "OAuthFile": "oauth",
}
_URLS = [{"required": [key]} for key in ("url", "serverUrl", "httpUrl")]


def config_schema() -> dict[str, Any]:
    """The schema, as draft 2020-12."""
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
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Holdfast configuration",
        **schema,
    }


def schema_text() -> str:
    """The schema as it is checked in."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


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
    result = {_NAMES.get(key, key): _tidy(value) for key, value in schema.items() if not _is_noise(key, value)}
    if len(result.get("anyOf", ())) == 1:
        result |= result.pop("anyOf")[0]
    return result


def _is_noise(key: str, value: object) -> bool:
    return (key == "title" and isinstance(value, str)) or (
        key == "default" and (value in (None, []) or isinstance(value, dict))
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
        default = format_size(default)
    return {**schema, "default": default}


def main(arguments: list[str]) -> None:
    """Write the schema to the file that is named, or to standard output."""
    if arguments:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())


if __name__ == "__main__":
    main(sys.argv[1:])
