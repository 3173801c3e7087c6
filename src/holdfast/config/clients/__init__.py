"""Other MCP clients: where each keeps its servers, what its entries mean to us, and how it is pointed at the hub.

A client's file is the user's, and the client's own program writes it too: it is edited in place as text,
so that comments, order and unknown keys stay, and never without a backup.
"""
