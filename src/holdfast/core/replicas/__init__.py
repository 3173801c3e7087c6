"""The protocol of replicas: decisions only, as everywhere in ``core``.

``records`` has what replicas agree on and how two versions merge; ``probe_rights`` who may try a dead server; ``homes``
which replica a request belongs to; ``store`` what the store does; ``member`` what one replica does with all of that.
The same code runs in production and in the simulation.
"""
