"""The control API of a running hub: its models, a client, and how to find a hub on this machine."""
