"""The driver of a cluster: runs, their lives, the scheduler, queries, and what is measured."""
