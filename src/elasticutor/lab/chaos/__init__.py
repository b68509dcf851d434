"""Chaos: processes of a live run are killed without pause, and every tuple must count once.

```
elasticutor chaos (runner) ──starts, asks, kills──▶ driver ──▶ nodes, main processes, tasks, …
        │                                             │
        └──────────── reads along ◀──── journal ──────┘
```

- `topology` is what runs: sources, two operators that chain hashes, and a Parquet sink.
- `driver` is a process that runs it, and moves shards and cores about all the time.
- `kill_points` lists the places of the protocol at which a process can be made to die, and `doom`
  makes it die there.
- `runner` picks victims by a seed, kills them, and waits until all is well again.
- `oracle` compares what is left, state and outputs, with a sequential fold of the same tuples.
"""
