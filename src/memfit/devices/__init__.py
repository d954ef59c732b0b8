"""Which device a run must fit into: a catalog of cards, and this machine."""
