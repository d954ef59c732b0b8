"""What glibc keeps of freed tensors goes back to the system."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from memfit.trainer.resident import give_freed_tensors_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if "back" in sys.argv:
    assert give_freed_tensors_back()
kept = []
torch.ones(7 << 20)          # 28 MiB: from its end on, malloc keeps blocks of that size in its heap
before = resident()
freed = []
for _ in range(16):
    freed.append(torch.ones(1 << 20))   # 4 MiB
    kept.append(torch.ones(1 << 14))    # 64 KiB between them
del freed
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is Linux's")
def test_freed_tensors_between_live_ones_are_no_longer_resident() -> None:
    def held_mib(*arguments: str) -> int:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        return int(subprocess.check_output(command, text=True))

    assert held_mib("back") < 8
    assert held_mib() > 32
