"""Records the memory of real runs as a Timeline."""
