"""Optimizers that torch does not have: Muon with AdamW, and Muon with 8-bit momentum."""
