"""What checkpoints cost, and how soon state is back."""
