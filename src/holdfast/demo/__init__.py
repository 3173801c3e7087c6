"""A small fleet of real servers to try Holdfast on: each fails in a way of its own, and can be broken and healed.

``server.py`` is the program that every one of them runs, ``fleet.py`` starts them and writes their
``mcp.json``, ``control.py`` is how a second terminal breaks and heals them.
"""
