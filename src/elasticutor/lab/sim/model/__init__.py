"""Models the parts of a cluster: machines, CPUs, sources, executors, and what messages cost."""
