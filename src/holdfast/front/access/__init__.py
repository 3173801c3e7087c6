"""Access to the hub: who sends a request, and whether it is served."""
