"""The protocol of a fleet of hubs: decisions only, as everywhere in ``core``.

``records`` has what replicas agree on and how two versions merge; ``store`` what the store does; ``member`` what one
replica does. The same code runs in production and in the simulation.
"""
