"""Benchmarks. Each measures Holdfast and its baseline in one run: ``python -m benchmarks``."""
