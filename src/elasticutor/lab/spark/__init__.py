"""What the laboratory runs on Spark itself."""
