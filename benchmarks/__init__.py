"""How fast Holdfast is, measured beside what it is compared with, in one run: ``python -m benchmarks``."""
