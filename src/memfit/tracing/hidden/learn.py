"""Learns the scratch memory of ops by running each once, in a process of its own.

    python -m memfit.tracing.hidden.learn < calls > sequences

reads one call a line as JSON, runs it on zeros below autograd while listening to the allocator,
and writes one line of what it saw.  A crash of a kernel ends this process and no other; the
parent goes on with the calls behind it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from memfit.devices.cpu_allocations import Allocation, CpuAllocations
from memfit.tracing.calls import Call, TensorSpec, call_below, rebuild
from memfit.tracing.hidden.encoding import call_from_json
from memfit.tracing.memory import storage_address

_WARM_UP_SECONDS = 0.2
"""A call that takes less is run once before it is listened to, as in a run's later steps."""


Row: TypeAlias = tuple[int | str, int]
"""(address, signed bytes), or ("output", j) where the storage of output j is allocated."""


def run_call(call: Call) -> list[Row]:
    """The allocator's events inside one real run of the call, on zeros."""
    started = time.perf_counter()
    events = _listen(call)
    if time.perf_counter() - started < _WARM_UP_SECONDS:
        events = _listen(call)
    return events


def _listen(call: Call) -> list[Row]:
    op = resolve(call.op)
    args, kwargs = rebuild(call, zeros_for(call))
    listener = CpuAllocations()
    with listener:
        result = call_below(op, args, kwargs)
        addresses = _output_addresses(result)
    events = _without_wrapped_numbers(listener.events, _num_wrapped(op, call))
    return _name_outputs(events, addresses)


def zeros_for(call: Call) -> Callable[[TensorSpec], torch.Tensor]:
    """Makes the call's tensors, of zeros, those of one storage in one storage."""
    extents: dict[int, int] = {}
    for spec in call.tensors():
        extents[spec.storage] = max(extents.get(spec.storage, 0), spec.extent_bytes)
    zeros = {number: torch.zeros(size, dtype=torch.uint8) for number, size in extents.items()}

    def make(spec: TensorSpec) -> torch.Tensor:
        storage = zeros[spec.storage].untyped_storage()
        return torch.empty(0, dtype=spec.dtype).set_(storage, spec.offset, spec.shape, spec.stride)

    return make


def _num_wrapped(op: torch._ops.OpOverload, call: Call) -> int:
    """How many Python numbers stand in the place of tensors: calling the op wraps each."""
    named = dict(call.kwargs)
    count = 0
    for position, argument in enumerate(op._schema.arguments):
        value = call.argument(position, named.get(argument.name))
        is_tensor = str(argument.type) in ("Tensor", "Optional[Tensor]")
        count += is_tensor and isinstance(value, (bool, int, float, complex))
    return count


def _without_wrapped_numbers(events: list[Allocation], count: int) -> list[Allocation]:
    """Drops the first ``count`` blocks: they are made while the arguments are read."""
    wrapped = [event.address for event in events if event.num_bytes > 0][:count]
    kept = []
    for event in events:
        if event.num_bytes > 0 and event.address in wrapped[:count]:
            count -= 1
        elif event.num_bytes < 0 and event.address in wrapped:
            wrapped.remove(event.address)
        else:
            kept.append(event)
    return kept


def _output_addresses(result: Any) -> list[int]:
    leaves = result if isinstance(result, (tuple, list)) else [result]
    flat: list[Any] = []
    for leaf in leaves:
        flat.extend(leaf if isinstance(leaf, (tuple, list)) else [leaf])
    return [storage_address(leaf) for leaf in flat if isinstance(leaf, torch.Tensor)]


def _name_outputs(events: list[Allocation], addresses: list[int]) -> list[Row]:
    """Replaces the last allocation at each output's address by ``("output", index)``."""
    named: list[Row] = [(event.address, event.num_bytes) for event in events]
    for index, address in enumerate(addresses):
        for position in reversed(range(len(events))):
            if events[position].address == address:
                if events[position].num_bytes > 0:
                    named[position] = ("output", index)
                break
    return named


def resolve(name: str) -> torch._ops.OpOverload:
    """The op of a name such as ``aten::add.Tensor``."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    return getattr(packet, overload or "default")  # type: ignore[no-any-return]


def main() -> None:
    """Answers each call of stdin with one line on stdout."""
    torch.set_num_threads(int(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            events = run_call(call_from_json(json.loads(line)))
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
            print(json.dumps({"error": str(error)}), flush=True)
            continue
        print(json.dumps({"events": events}), flush=True)


if __name__ == "__main__":
    main()
