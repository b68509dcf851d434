"""The demo: two operators whose rushes follow each other, elastic beside static."""
