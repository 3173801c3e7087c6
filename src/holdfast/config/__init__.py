"""An mcp.json, and its relatives, become frozen models; no other room reads a config file."""
