"""Benchmarks of one part alone: no Spark, and no run around it."""
