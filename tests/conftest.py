"""Settings for all tests."""

import os

from hypothesis import settings

# Machines that run tests are busy, so no example has a deadline. In CI the same examples are tried
# every time; at a desk new ones are.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
