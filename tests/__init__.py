"""Holdfast's tests; ``tests.peers`` holds the real servers that they talk to."""
