"""The command line, `elasticutor`."""

from __future__ import annotations

from elasticutor.cli.app import main

__all__ = ["main"]
