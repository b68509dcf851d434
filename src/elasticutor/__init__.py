"""Elastic, stateful, real-time stream processing for Python people on Spark."""

from elasticutor._version import __version__

__all__ = ["__version__"]
