"""Options that several benchmarks have: called with a default, each declares a field."""

from __future__ import annotations

from elasticutor.lab.options import Option

CORES = Option("Cores of the executor: its tasks.", min=1, key="tasks")
EMULATED = Option(
    "Cores of the executor, which sleep instead of working.", min=1, key="emulated_cores"
)
COST_MS = Option("What a tuple takes, in ms.", min=0.001, key="cost_ms")
CHUNK_MS = Option("Work that a task is handed at once, in ms.", min=0.1, key="chunk_ms")
LOAD = Option("Offered rate, as a share of the possible.", min=0.01, max=0.99, key="load")
KEYS = Option("How many keys there are.", min=1, key="keys")
ZIPF = Option("Skew of the keys.", min=0, key="zipf")
SECONDS = Option("How long to measure each time.", min=1, key="seconds")
WARM_UP = Option("Seconds before that, which do not count.", min=0)
REPEAT = Option("How often; figures are medians of these.", min=1)
SEED = Option("For the tuples.", min=0)
FOLDER = Option("Where to make the checkpoints.", shows="temporary files")
BESIDE = Option("Run the same work in turns on a peer: bytewax.")
CHECKPOINT = Option("Make state durable every 2 s meanwhile, on both sides.", key="checkpoint")
