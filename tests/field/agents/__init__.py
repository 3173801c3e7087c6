"""Agent programs of the field with a scripted model: how each is installed, configured, run, and what it saw."""
