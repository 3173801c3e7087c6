"""Real peers for the tests: servers that behave, servers that misbehave on demand, and checks for leaks."""
