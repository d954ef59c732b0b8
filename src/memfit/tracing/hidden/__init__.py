"""Memory that kernels take unseen by the trace: from a formula with its source, or learnt."""
