"""Other MCP clients: where each keeps its servers, how its entries are read, and how it is pointed at the hub.

A client's file belongs to the user, and the client writes it too. It is edited in place as text, so that
comments, order and unknown keys stay, and a backup is made before every edit.
"""
