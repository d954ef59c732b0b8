"""What CUDA kernels take that a trace cannot see: formulas, each with its source and versions."""
