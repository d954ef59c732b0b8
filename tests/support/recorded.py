"""Plays a recording of a real GPU on the simulated allocator, which writes its own recording."""

from collections import deque
from pathlib import Path
from typing import NamedTuple

from memfit.allocator.addresses import Addresses, addresses
from memfit.allocator.caching import CachingAllocator
from memfit.allocator.settings import parse_settings
from memfit.allocator.version import TorchVersion
from memfit.profiler.snapshot import Recording

SNAPSHOTS = Path(__file__).parents[2] / ".." / "shared" / "ground_truth" / "snapshots"


class Did(NamedTuple):
    """One event of a recording, without its stack."""

    action: str
    address: int
    num_bytes: int


class Driver:
    """Where segments are, with a diary; fresh ones lie where the GPU's driver put them, if given.

    A segment of another size than the GPU took next lies at 0.
    """

    def __init__(self, diary: list[Did], recording: Recording | None, policy: str) -> None:
        self._diary = diary
        self._policy: Addresses = addresses(policy)
        self._recorded = recording and deque(
            (event.address, event.num_bytes)
            for event in recording.events
            if event.action == "segment_alloc"
        )

    def take(self, num_bytes: int) -> int:
        if self._recorded is None:
            address = self._policy.take(num_bytes)
        else:
            place, size = self._recorded.popleft() if self._recorded else (0, 0)
            address = place if size == num_bytes else 0
        self._diary.append(Did("segment_alloc", address, num_bytes))
        return address

    def give_back(self, address: int, num_bytes: int) -> None:
        self._diary.append(Did("segment_free", address, num_bytes))
        if self._recorded is None:
            self._policy.give_back(address, num_bytes)


class Played(NamedTuple):
    diary: list[Did]
    allocator: CachingAllocator


def play(
    recording: Recording,
    version: TorchVersion,
    *,
    blind: bool = False,
    capacity_bytes: int | None = None,
) -> Played:
    """The recording's requests on the simulated allocator.

    A stretch of ``segment_free`` events becomes one ``empty_cache``; with a capacity only the one
    that the recording may begin with does, and the allocator has to find out by itself when it
    must give memory back.

    Args:
        blind: addresses of fresh segments are invented.
    """
    diary: list[Did] = []
    allocator = CachingAllocator(
        version=version,
        settings=parse_settings(recording.settings, version),
        addresses=Driver(diary, None if blind else recording, "ascending"),
        capacity_bytes=capacity_bytes,
    )
    live = {block.address: block for block in allocator.restore(recording.start_segments).values()}
    number = len(live)
    last = ""
    for event in recording.events:
        if event.action == "alloc":
            block = allocator.take(event.num_bytes, event.stream)
            block.number, number = number, number + 1
            live[event.address] = block
            diary.append(Did("alloc", block.address, event.num_bytes))
        elif event.action == "free_completed":
            block = live.pop(event.address)
            diary.append(Did("free_completed", block.address, event.num_bytes))
            allocator.give(block)
        elif (
            event.action == "segment_free"
            and last != "segment_free"
            and (capacity_bytes is None or not last)
        ):
            allocator.empty_cache()
        last = event.action
    return Played(diary, allocator)


def told(recording: Recording) -> list[Did]:
    """The recording's events that the simulation should repeat."""
    return [
        Did(event.action, event.address, event.num_bytes)
        for event in recording.events
        if event.action in ("alloc", "free_completed", "segment_alloc", "segment_free")
    ]
