"""Tests of the wire: real processes, real sockets, and what the protocol makes of them."""
