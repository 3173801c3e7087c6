"""Tests of the async shell: loading, its outcomes and its limits."""
