"""The simulated cluster's parts: machines, CPUs, sources, executors, and what messages cost."""
