"""Turns the evidence of a dial into a finding.

The type of evidence decides. Where two causes look alike, a second connection tells them apart; it keeps the
server's deadline and sends credentials only where the definition sends them.
"""
