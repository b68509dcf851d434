"""Measurements: what executors and sources count, mergeable and without a clock of their own."""
