"""The same work on a peer, Bytewax."""
