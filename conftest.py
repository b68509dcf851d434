"""What is not collected: doctests of a module whose library is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("bytewax") else ["src/elasticutor/lab/bench/peer/bytewax_worker.py"]
)
