"""The hub for its operator: control API, status page, health, metrics."""
