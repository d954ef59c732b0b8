"""The optimizer's state and update on the CPU.

Each parameter has a copy in host memory, in fp32 (of bf16 parameters it is the master copy, so
nothing has to be rounded by chance), and the optimizer's state is beside it.  In backward, each
gradient is copied to the host as soon as it is whole, and let go of on the device.  With
accumulation the gradients are added up on the host: waiting for the last micro-batch would keep
all of them on the device.  The update runs on the host, and the parameters are copied back.

Source: Ren et al. 2021, "ZeRO-Offload", https://arxiv.org/abs/2101.06840.  A parameter in fp32 that
is on the CPU already is its own copy, and its gradient stays where it is.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from memfit.errors import BadInput
from memfit.optimizers.forms import has_fused
from memfit.optimizers.pieces import loss_of
from memfit.records.recipe import Recipe
from memfit.techniques.update import Update

MASTER = "master"
"""The name of the fp32 copy among the state of a parameter in 16 bits."""

_IN_FLIGHT = 2
"""Gradients whose copy may still run; they are on the device that long."""


def offload_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe
) -> torch.optim.Optimizer:
    """The optimizer itself, or one whose state is on the CPU where the recipe says so.

    Raises:
        BadInput: the precision is fp16.
    """
    if not recipe.offloads_optimizer:
        return optimizer
    if recipe.precision == "fp16":
        raise BadInput(
            "offload optimizer does not go with fp16: the gradient scaler looks for the gradients "
            "beside the parameters, and they are on the host; write precision bf16"
        )
    return OffloadedOptimizer(optimizer)


class OffloadedOptimizer(torch.optim.Optimizer):
    """An optimizer over the model's parameters, which works on copies in host memory.

    Args:
        inner: an optimizer that has no state yet; from here on it has the copies.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        hosts: dict[Tensor, Tensor] = {}
        groups = []
        for group in inner.param_groups:
            groups.append(dict(group))
            for parameter in group["params"]:
                hosts[parameter] = _host_copy(parameter)
            group["params"] = [hosts[parameter] for parameter in group["params"]]
            if group.get("fused") and not has_fused(group["params"]):
                group["fused"], group["foreach"] = False, False
        # The constructor of Optimizer would make a state of its own.
        self.__setstate__({"defaults": dict(inner.defaults), "param_groups": groups})
        self._inner, self._hosts = inner, hosts
        self._update = Update(inner)
        self._versions = {parameter: parameter._version for parameter in hosts}
        device = next((p.device for p in hosts if p.is_cuda), None)
        self._stream = torch.cuda.Stream(device) if device is not None else None
        self._buffers: dict[tuple[Any, ...], list[Tensor]] = {}
        self._arriving: deque[_Arriving] = deque()
        for parameter, host in hosts.items():
            if host is not parameter:
                parameter.register_post_accumulate_grad_hook(_streaming(self))

    param_groups: list[dict[str, Any]]
    state_is_on_host = True

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """The state of each parameter, which is on the host."""
        return _States(self._inner, self._hosts)

    def gradients(self) -> list[Tensor]:
        """The gradients, where they are: on the host."""
        self._settle(0)
        return [host.grad for host in self._hosts.values() if host.grad is not None]

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_`` of the gradients, which are not beside the parameters.

        Returns:
            Their norm before, on the host.
        """
        self._settle(0)
        return nn.utils.clip_grad_norm_(list(self._hosts.values()), max_norm, norm_type)

    def pieces(self) -> list[Callable[[], None]]:
        """The update in pieces, each of which can be repeated when it fails."""
        return [self._prepare, self._update_hosts, self._copy_back]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates on the host, and copies the parameters back."""
        loss = loss_of(closure)
        for piece in self.pieces():
            piece()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, also those on their way; their host buffers are used again."""
        self._settle(0)
        for parameter, host in self._hosts.items():
            if host is not parameter and host.grad is not None:
                self._put_back(host.grad)
            parameter.grad = host.grad = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what ``state_dict`` gave; the state stays on the host."""
        self._inner.load_state_dict(state_dict)
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update(_settings(inner))

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refuses: the copies are made once.

        Raises:
            BadInput: always.
        """
        raise BadInput(
            "an offloaded optimizer takes no more parameters: add the group to the optimizer "
            "before it is offloaded"
        )

    # ------------------------------------------------------------------ gradients

    def take(self, parameter: Tensor) -> None:
        """Sends the gradient of a parameter to the host."""
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        gradient = gradient.detach()
        buffer = self._buffer(gradient)
        event = None
        if self._stream is None:
            buffer.copy_(gradient)
        else:
            if not self._arriving:  # the first of a backward pass, at whose end none stays behind
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(lambda: self._settle(0))
            self._stream.wait_stream(torch.cuda.current_stream(gradient.device))
            with torch.cuda.stream(self._stream):
                buffer.copy_(gradient, non_blocking=True)
                event = torch.cuda.Event()
                event.record(self._stream)
        self._arriving.append(_Arriving(self._hosts[parameter], buffer, gradient, event))
        del gradient
        self._settle(_IN_FLIGHT if self._stream is not None else 0)

    def _settle(self, num_left: int) -> None:
        """Adds up the gradients that have come, all but the last ``num_left``."""
        while len(self._arriving) > num_left:
            arrived = self._arriving.popleft()
            if arrived.event is not None:
                arrived.event.synchronize()
            host, buffer = arrived.host, arrived.buffer
            if host.grad is None and buffer.dtype == host.dtype:
                host.grad = buffer
                continue
            if host.grad is None:
                host.grad = self._buffer(host).copy_(buffer)
            else:
                host.grad.add_(buffer)
            self._put_back(buffer)

    def _buffer(self, like: Tensor) -> Tensor:
        """Laid out alike: copies between layouts take memory on the device."""
        free = self._buffers.get(_form(like))
        if free:
            return free.pop()
        pinned = self._stream is not None
        return torch.empty_like(like, device="cpu", pin_memory=pinned)

    def _put_back(self, buffer: Tensor) -> None:
        self._buffers.setdefault(_form(buffer), []).append(buffer)

    # ------------------------------------------------------------------ the update

    @torch.no_grad()
    def _prepare(self) -> None:
        """Takes over what was changed from outside: settings, weights, a state that was read."""
        self._settle(0)
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update(_settings(group))
        for parameter, host in self._hosts.items():
            if host is parameter:
                continue
            if parameter._version != self._versions[parameter]:
                host.copy_(parameter)
                self._versions[parameter] = parameter._version
            state = self._inner.state.get(host) or {}
            for name, value in list(state.items()):
                if isinstance(value, Tensor) and value.device.type != "cpu":
                    state[name] = value.cpu()
            if MASTER in state and state[MASTER] is not host:
                host.copy_(state[MASTER])
                state[MASTER] = host

    @torch.no_grad()
    def _update_hosts(self) -> None:
        self._update.step()
        self._update.begin()
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update(_settings(inner))

    @torch.no_grad()
    def _copy_back(self) -> None:
        for parameter, host in self._hosts.items():
            if host is parameter or host.grad is None:
                continue
            narrow = host.detach().to(parameter.dtype)
            parameter.copy_(narrow, non_blocking=self._stream is not None)
            self._versions[parameter] = parameter._version
            if parameter.dtype != host.dtype:
                self._inner.state[host][MASTER] = host


class _Arriving(NamedTuple):
    """A gradient on its way to the host; it stays on the device until the copy is done."""

    host: Tensor
    buffer: Tensor
    gradient: Tensor
    event: torch.cuda.Event | None


class _States(MutableMapping[Tensor, Any]):
    """The states of the copies, by the parameters they are copies of."""

    def __init__(self, inner: torch.optim.Optimizer, hosts: dict[Tensor, Tensor]) -> None:
        self._inner, self._hosts = inner, hosts

    def __getitem__(self, parameter: Tensor) -> Any:
        return self._inner.state[self._hosts[parameter]]

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._inner.state[self._hosts[parameter]] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._inner.state[self._hosts[parameter]]

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._hosts and self._hosts[parameter] in self._inner.state  # type: ignore[index]

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for parameter in self._hosts if parameter in self)

    def __len__(self) -> int:
        return len(self._inner.state)

    def clear(self) -> None:
        """Forgets all state."""
        self._inner.state.clear()


def _host_copy(parameter: Tensor) -> Tensor:
    """The parameter in host memory, in fp32 at least; itself where it is that."""
    wide = torch.promote_types(parameter.dtype, torch.float32)
    if parameter.device.type == "cpu" and parameter.dtype == wide:
        return parameter
    with torch.no_grad():
        host = torch.empty_like(parameter, dtype=wide, device="cpu", pin_memory=parameter.is_cuda)
        host.copy_(parameter)
    return nn.Parameter(host)


def _streaming(optimizer: OffloadedOptimizer) -> Callable[[Tensor], None]:
    """A hook that holds no optimizer: that holds the parameter, which holds the hook."""
    found = weakref.ref(optimizer)

    def stream(parameter: Tensor) -> None:
        optimizer = found()
        if optimizer is not None:
            optimizer.take(parameter)

    return stream


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    kept = ("params", "fused", "foreach")
    return {name: value for name, value in group.items() if name not in kept}
