"""The checker: seeded runs of the core with faults inside the protocol, against a sequential fold.

`elasticutor check` runs it; a seed that fails can be replayed, step by step, with `--trace`.
"""
