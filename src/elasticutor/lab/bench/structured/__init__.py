"""`elastic()` beside Spark's own APIs for state per key."""
