"""Runs a job for real: the loop, its schedule, its evaluation and its saved state."""
