"""Shards on the move under load: how long they wait, and whether anything is lost."""
