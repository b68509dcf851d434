"""Processes and sockets: what carries the core's instructions out on real machines."""
