"""What makes a step smaller or faster, and the one order in which it is applied."""
