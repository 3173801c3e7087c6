"""The hub inside agent frameworks: one module for each, each an extra of the same name.

No framework is imported unless its module is.
"""
