"""Small wrong changes of the code, each run against the nearest tests: what survives shows where a test is missing."""
