"""Messages between processes: what they are, how they become frames, and the channels they use."""
