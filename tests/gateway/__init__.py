"""AgentGateway's configuration: what is rendered, what is refused, and the bridge under faults."""
