"""Holdfast keeps a fleet of MCP servers available, and tells the truth about those that are not."""
