"""Per-key state: the store of a node with its levels, and a task's write-back cache."""
