"""The core under virtual time, without real processes: the paper's cluster, and the clock."""
