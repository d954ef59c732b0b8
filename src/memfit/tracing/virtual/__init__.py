"""A GPU that is not there: plain tensors on a device of our own, which Python is told is cuda:0."""
