"""The operator's side of a running hub: the control API, its event stream, the status page, logs and metrics.

``holdfast.control`` exports its names, each imported when it is first used: a supervisor needs the log and the
sign-ins, and no API.
"""
