"""Runs a training step without data or arithmetic, and records its memory as a Timeline."""
