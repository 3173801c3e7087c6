"""What an operator sees of a running hub, and does to it: the control API, its event stream, the status page, metrics.

It stands beside the front and never in the way of a call: it reads what the hub tells, and gives commands.
"""
