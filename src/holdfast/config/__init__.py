"""Reads an ``mcp.json`` and similar files into frozen models. No other package reads a configuration file."""
