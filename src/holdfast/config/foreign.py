"""Keys of other MCP clients that Holdfast accepts and ignores.

They are accepted so that one file serves several clients. ``config show`` lists them as
ignored. Any other unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONNECTION_KEYS", "SERVER_KEYS", "TOP_KEYS"]

_NOTE = "a note to people"
_VS_CODE = "VS Code"
_LIBRECHAT = "LibreChat"
_GEMINI = "Gemini CLI"

TOP_KEYS: Mapping[str, str] = {
    "$comment": _NOTE,
    "$schema": "the editor's schema",
    "//": _NOTE,
    "_comment": _NOTE,
    "globalShortcut": "Claude Desktop",
    "inputs": _VS_CODE,
    "mcpSettings": _LIBRECHAT,
    "preferences": "Claude Desktop",
    "sandbox": _VS_CODE,
    "version": _LIBRECHAT,
}
"""At the top of the file: the key, and the client that uses it."""

SERVER_KEYS: Mapping[str, str] = {
    "$comment": _NOTE,
    "//": _NOTE,
    "_comment": _NOTE,
    "alwaysAllow": "Roo Code, Windsurf",
    "alwaysLoad": "Claude Code",
    "apiKey": _LIBRECHAT,
    "auth": "Cursor",
    "authProviderType": _GEMINI,
    "autoApprove": "Cline, Kiro",
    "chatMenu": _LIBRECHAT,
    "comment": _NOTE,
    "customUserVars": _LIBRECHAT,
    "description": "several clients",
    "dev": _VS_CODE,
    "extension": _GEMINI,
    "extensionName": _GEMINI,
    "gallery": _VS_CODE,
    "headersHelper": "Claude Code",
    "icon": "several clients",
    "iconPath": _LIBRECHAT,
    "initTimeout": _LIBRECHAT,
    "name": "several clients",
    "note": _NOTE,
    "oauth_headers": _LIBRECHAT,
    "obo": _LIBRECHAT,
    "proxy": _LIBRECHAT,
    "registry": "Windsurf",
    "remote": "Zed",
    "requiresOAuth": _LIBRECHAT,
    "sandbox": _VS_CODE,
    "sandboxEnabled": _VS_CODE,
    "serverInstructions": _LIBRECHAT,
    "settings": "Zed",
    "source": "Zed",
    "sseReadTimeout": _LIBRECHAT,
    "startup": _LIBRECHAT,
    "stderr": _LIBRECHAT,
    "targetAudience": _GEMINI,
    "targetServiceAccount": _GEMINI,
    "timeout": "Claude Code, Cline, Gemini CLI, Roo Code (Holdfast: holdfast.call.timeout)",
    "title": _LIBRECHAT,
    "trust": _GEMINI,
    "version": _VS_CODE,
    "watchPaths": "Roo Code",
}
"""In the definition of a server: the key, and the client that uses it."""

CONNECTION_KEYS: Mapping[str, str] = {
    "encoding": "LangChain",
    "encoding_error_handler": "LangChain",
    "httpx_client_factory": "LangChain",
    "session_kwargs": "LangChain",
    "sse_read_timeout": "LangChain",
    "terminate_on_close": "LangChain",
    "timeout": "LangChain",
}
"""In a connection that a program passes, in addition to the keys above."""
