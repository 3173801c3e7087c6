"""Finds out why a server cannot be used and what to do about it. Checks make findings; the command line shows them.

``checks`` has one small class for each check, ``diagnose`` turns the evidence of a dial into a finding, ``run``
runs all checks of all servers concurrently, ``codes`` says what each code means.
"""
