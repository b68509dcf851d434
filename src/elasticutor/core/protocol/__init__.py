"""The protocol: identifiers, messages, and each side of the wire once."""
