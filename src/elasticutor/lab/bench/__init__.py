"""Benchmarks: each is a command, prints figures, and has its place in docs/benchmarks.md."""
