"""What the tests of several packages share: hubs that are open or served, clients by hand, and waits.

`tests/peers` has the servers and programs on the other side; a helper of one package stays in that package's folder.
"""
