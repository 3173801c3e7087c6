"""The hub as an MCP server: over streamable HTTP for many clients, over stdio for one."""
