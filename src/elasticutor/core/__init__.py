"""Decisions and protocols: pure logic, no I/O, no threads, no clock or randomness of its own."""
