"""The CPU's allocator, as PyTorch uses it: hands out what is asked for and keeps nothing back.

c10::DefaultCPUAllocator calls ``posix_memalign`` for each storage and ``free`` at its end.  What
the C library rounds up or keeps for later belongs to the process, not to PyTorch's count.
"""

from __future__ import annotations

from memfit.records.replay import Replay
from memfit.records.timeline import Timeline


def replay_on_cpu(timeline: Timeline) -> Replay:
    """The Replay of a Timeline: allocated and reserved are what is requested."""
    curve = timeline.curve()
    return Replay(
        allocator="cpu",
        requested=curve,
        allocated=curve,
        reserved=curve,
        block_bytes=timeline.num_bytes,
    )
