"""The checks, one small class each. ``run.py`` lists them in the order in which they run."""
