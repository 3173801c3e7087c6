"""The configuration of AgentGateway: a model, its rendering for each gateway version, and the bridge.

Each rendered config fails closed and sets the authorization timeout. Nothing here connects to an MCP server.
"""
