"""Hubs for MCP under faults: the same scenes, the same client and the same server for each hub.

``python -m benchmarks hubs`` runs it. ``docs/benchmarks/hubs-rules.md`` is the rule book, ``rubric.py`` says how the
words of a hub are judged, ``adapters/`` holds one file for each hub, ``scenes/`` what is done to them.
"""
