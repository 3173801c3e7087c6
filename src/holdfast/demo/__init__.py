"""A small fleet of real servers to try Holdfast on: each fails in its own way, and can be broken and healed.

``server.py`` is the program of every server, ``fleet.py`` starts them and writes their ``mcp.json``, and
``control.py`` lets a second terminal break and heal them.
"""
