"""Settings for all tests, and the part of the suite that each of them is in."""

import os
import signal

import pytest
from hypothesis import settings

# Machines that run tests are busy, so no example has a deadline. In CI the same examples are tried
# every time; at a desk new ones are.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Started in the background, or by `nohup`, these signals are ignored, and what is started from
# here would inherit that. Some tests are about what they do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

CLUSTERS = {"cluster", "nodes", "processes", "shared_cluster"}
"""The fixtures that start the processes of a cluster."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures: the shared Spark session, a cluster, hundreds of seeds."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "spark" in fixtures:
            item.add_marker("spark")
        elif fixtures & CLUSTERS:
            item.add_marker("live")
        elif "two_hundred" in fixtures:
            item.add_marker("seeds")
