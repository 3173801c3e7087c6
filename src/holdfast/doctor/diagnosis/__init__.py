"""What a dial showed becomes a finding: which of the things that look alike it was, and what to do about it.

The kind of evidence decides; a second look, where one is needed to tell two things apart, stays within the
server's own deadline and sends credentials nowhere that the definition does not.
"""
