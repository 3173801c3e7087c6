"""The protocol of replicas: decisions only, as everywhere in ``core``.

``store`` has the records that replicas share, how two versions merge, and what the store does; ``agreement`` what they
find out alike, such as the replica that a request belongs to; ``probe_rights`` who may try a dead server; ``member``
what one replica does with all of that.
The same code runs in production and in the simulation.
"""
