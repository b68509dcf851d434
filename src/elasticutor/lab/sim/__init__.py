"""The same core under virtual time: processes, channels and losses, without a real one of them."""
