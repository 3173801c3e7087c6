"""Tests of what is offered for tests."""
