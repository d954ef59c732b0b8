"""One process of one GPU: ``torch.distributed``, ``DataParallel`` and ``multiprocessing.spawn``.

Every backend is PyTorch's fake process group, in the place that the run gives this process
(``RANK``, ``WORLD_SIZE``): no other process is waited for.  Collectives do nothing, and cost what
they allocate; NCCL's own buffers are outside the caching allocator, and not traced.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from memfit.tracing.log import Use
from memfit.tracing.virtual.backend import NAME
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_TIMEOUT = timedelta(minutes=10)
"""NCCL's own default, which builds without it do not know; nobody is waited for."""


def install(gpu: Dispatch) -> None:
    """Replaces what makes process groups; nothing where torch has none."""
    _install_one_process(gpu)
    if not torch.distributed.is_available():
        return
    import torch.distributed.distributed_c10d as c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    module: Any = c10d
    package: Any = torch.distributed
    fake = module.Backend.FAKE
    module.Backend.backend_capability[fake].append(NAME)
    module._NCCL_AVAILABLE = True
    module._get_default_timeout = lambda backend: _TIMEOUT
    begin, make = module.init_process_group, module._new_process_group_helper

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        **kwargs: Any,
    ) -> None:
        rank = _number("RANK", rank)
        world_size = _number("WORLD_SIZE", world_size)
        if world_size > 1:
            gpu.facts["ranks"] = f"rank {rank} of {world_size}; the others were not run"
        begin(
            backend,
            timeout=timeout,
            world_size=world_size,
            rank=rank,
            store=FakeStore(),
            **kwargs,
        )

    def new_group(size: Any, rank: Any, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("pg_options", "backend_options"):
            if name in kwargs:
                kwargs[name] = None
        group, store = make(size, rank, ranks, fake, *args, **kwargs)
        if group in module._world.pg_map:
            # Whoever asks for its backend is told the one that was wanted.
            module._world.pg_map[group] = (backend, module._world.pg_map[group][1])
        return group, store

    module._new_process_group_helper = new_group
    module.init_process_group = package.init_process_group = init_process_group
    _install_data_parallel(gpu, module)


def _install_data_parallel(gpu: Dispatch, module: Any) -> None:
    """Gives what is reduced back to whoever waits for it: the fake group's work has no result."""
    reduce = module.all_reduce
    package: Any = torch.distributed
    work: Any = torch._C._distributed_c10d
    make_work = work._create_work_from_future
    models: Any = DistributedDataParallel

    def all_reduce(
        tensor: Any, op: Any = module.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        reduce(tensor, op, group)
        return make_work(_done([tensor])) if async_op else None

    module.all_reduce = package.all_reduce = all_reduce
    forward = models.forward

    def reduce_bucket(state: Any, bucket: Any) -> Any:
        if is_virtual(bucket.buffer()):
            gpu.use([bucket.buffer()], Use.GRADIENT)
        return _done(bucket.buffer())

    def with_hook(model: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not model._comm_hooks:
            model._comm_hooks.append((reduce_bucket, None))
            package._register_comm_hook(model.reducer, None, reduce_bucket)
        return forward(model, *inputs, **kwargs)

    models.forward = with_hook


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return future


def _install_one_process(gpu: Dispatch) -> None:
    """What starts a process for each GPU runs the first one's part here."""
    package: Any = torch

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *rest: Any, **kwargs: Any) -> None:
        if nprocs > 1:
            gpu.facts["ranks"] = f"rank 0 of {nprocs}; the others were not run"
        fn(0, *args)

    package.multiprocessing.spawn = package.multiprocessing.start_processes = spawn

    def scatter(model: Any, inputs: Any, kwargs: Any, device_ids: Any) -> tuple[Any, Any]:
        def there(value: Any) -> Any:
            return value.cuda() if isinstance(value, torch.Tensor) else value

        return (pytree.tree_map(there, tuple(inputs)),), (pytree.tree_map(there, kwargs),)

    package.nn.DataParallel.scatter = scatter


def _number(variable: str, given: int) -> int:
    if given >= 0:
        return given
    if variable not in os.environ:
        raise ValueError(
            "Error initializing torch.distributed using env:// rendezvous: environment variable "
            f"{variable} expected, but not set"
        )
    return int(os.environ[variable])
