"""Settings for all tests."""

import os
import signal

from hypothesis import settings

# Machines that run tests are busy, so no example has a deadline. In CI the same examples are tried
# every time; at a desk new ones are.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Started in the background, or by `nohup`, these signals are ignored, and whoever is started from
# here would inherit that. Some tests are about what they do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
