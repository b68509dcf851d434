"""Sources: where the tuples of a topology come from.

A `Source` is a description that travels to the processes that read it. Each of these opens a
`Reader` for its part (its *task*, counted from 0) and polls it for what is due:

```
offer = reader.poll(time.time(), max_rows)   # never waits
if offer is None and not reader.exhausted:   # then the process sleeps, or does something else
    sleep(reader.wait_s(time.time()))
```

A reader that has rows at hand may give few of them as they are (`poll_rows`, asked first), and one
with a schedule may say so (`knows_when`): both shorten latency.

The reader's `offset` goes into every checkpoint. After a failure the source is opened again there,
and what it offers from then on must be the same tuples as before, in the same order; they may be
divided differently among offers.

`Generator` makes the load of the paper's experiments; `IterableSource` reads batches or rows from
memory.
"""

from __future__ import annotations

from elasticutor.sources.base import Offer, Reader, RowOffer, Source
from elasticutor.sources.generating import BLOCK_ROWS, Generator, HotKey
from elasticutor.sources.iterable import IterableSource

__all__ = [
    "BLOCK_ROWS",
    "Generator",
    "HotKey",
    "IterableSource",
    "Offer",
    "Reader",
    "RowOffer",
    "Source",
]
