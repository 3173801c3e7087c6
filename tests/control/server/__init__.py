"""Tests of the hub for its operator."""
