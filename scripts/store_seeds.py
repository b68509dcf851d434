"""Search for the first seed that finds each planted bug, and store it beside the bugs.

`make test` replays these seeds, `make matrix` searches. Run this when a planted bug is new, or when
a change of the protocol or of the checker makes another seed find one:

    .venv/bin/python scripts/store_seeds.py
    .venv/bin/python scripts/store_seeds.py --missing   # keep those that still find theirs
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor

from elasticutor.lab.check.mutants import ALL
from elasticutor.lab.check.mutants.mutant import SEEDS

MOST_SEEDS = 300
_BY_NAME = {mutant.name: mutant for mutant in ALL}


def killing_seed(name: str, missing: bool) -> int | None:
    """Return the stored seed if only missing ones are wanted and it does; else the first found."""
    mutant = _BY_NAME[name]
    if missing and mutant.seed is not None and mutant.found_by(mutant.seed):
        return mutant.seed
    after = mutant.found_after(MOST_SEEDS)
    return None if after is None else after - 1


def main() -> int:
    """Search for all, two at a time; 1 if one is not found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--missing", action="store_true", help="search only where the seed fails")
    parser.add_argument("--processes", type=int, help="default: one per core")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        asked = [options.missing] * len(_BY_NAME)
        found = dict(zip(_BY_NAME, pool.map(killing_seed, _BY_NAME, asked), strict=True))
    seeds = {name: seed for name, seed in found.items() if seed is not None}
    SEEDS.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name in found.keys() - seeds.keys():
        print(f"{name}: not found within {MOST_SEEDS} seeds", file=sys.stderr)  # noqa: T201
    return int(len(seeds) < len(found))


if __name__ == "__main__":
    sys.exit(main())
