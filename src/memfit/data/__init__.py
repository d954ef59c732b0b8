"""Text on disk to batches of token ids."""
