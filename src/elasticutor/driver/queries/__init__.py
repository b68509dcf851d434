"""The operators of a Structured Streaming query, seen from the driver."""
