"""The simulated world of a checked run: processes, channels, stores, and time."""
