"""Where processes come from and how they end: hosts, the zygote, lifelines, directories."""
