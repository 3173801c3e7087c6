"""How a running hub is asked and steered: the shapes of its control API, where a local hub is, and a client of it."""
