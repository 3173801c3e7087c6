"""The only room that knows the MCP client and an HTTP client: dial a server, record evidence, close it."""
