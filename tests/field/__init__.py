"""Real clients from npm and PyPI against a real hub: ``make test-field``."""
