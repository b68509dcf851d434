"""The life of a run: what the driver decides about its participants."""
