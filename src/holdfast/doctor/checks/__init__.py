"""The checks, one small class for each: in ``all.py``, in the order in which they run."""
