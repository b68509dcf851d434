"""Looking into checkpoints: which epochs they have, the state in them, and what changed."""
