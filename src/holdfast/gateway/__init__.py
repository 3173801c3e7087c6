"""AgentGateway's configuration: one model of what is wanted, its render per gateway version, and the bridge.

Whatever is rendered here fails closed and names its authorization timeout. Nothing here dials an MCP server.
"""
