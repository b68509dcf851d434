"""A run, seen from the driver: who takes part, epochs, recovery, and the end."""
