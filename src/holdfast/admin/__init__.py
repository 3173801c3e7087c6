"""The operator's side of a running hub: the control API, its event stream, the status page, logs and metrics.

It reads the hub's records and gives commands. It is never on the path of a call.
"""
