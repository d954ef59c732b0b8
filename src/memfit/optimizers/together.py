"""Several optimizers as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from memfit.errors import BadInput
from memfit.optimizers.pieces import loss_of


def parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that ``optimizer`` is made of; itself where it is an ordinary one."""
    if isinstance(optimizer, Together):
        return [inner for part in optimizer.parts for inner in parts(part)]
    return [optimizer]


class Together(torch.optim.Optimizer):
    """Several optimizers, each over parameters of its own, that behave like one.

    ``param_groups`` are the groups of all, the same dicts, so schedulers of learning rates and
    gradient scalers find them.  ``state`` reads and writes through to the optimizer a parameter
    belongs to, and a state dict has the form of any optimizer's.  Copies and pickles as others do.

    Args:
        parts: the optimizers; they step in this order.

    Raises:
        BadInput: there is none, or a parameter is in two of them.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        # The constructor of Optimizer would make groups and state of its own.
        self.__setstate__({"defaults": {}, "parts": tuple(parts)})
        if not self.parts:
            raise BadInput("Together needs at least one optimizer: it got none")
        parameters = [p for group in self.param_groups for p in group["params"]]
        num_twice = len(parameters) - len({id(p) for p in parameters})
        if num_twice:
            raise BadInput(
                f"{num_twice} parameters are in two of the optimizers, which would update them "
                "twice a step: give each parameter to one"
            )

    parts: tuple[torch.optim.Optimizer, ...]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all parts, in their order.  A new list of the same dicts."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """The state of each parameter, kept by the part it belongs to."""
        return _States(self.parts)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every part; ``closure`` is called once, before."""
        loss = loss_of(closure)
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what ``state_dict`` gave: each part its own groups and their state.

        Raises:
            ValueError: it has another number of groups, or a group another number of parameters.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        groups, state = state_dict["param_groups"], state_dict["state"]
        sizes = [len(group["params"]) for group in groups]
        expected = [len(group["params"]) for group in self.param_groups]
        if sizes != expected:  # before the first part has loaded its own
            raise ValueError(
                f"the state dict has groups of {sizes} parameters, the optimizer of {expected}"
            )
        start = 0
        for part in self.parts:
            own = groups[start : start + len(part.param_groups)]
            start += len(part.param_groups)
            indices = {index for group in own for index in group["params"]}
            part.load_state_dict(
                {
                    "param_groups": own,
                    "state": {index: state[index] for index in indices if index in state},
                }
            )
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refuses: which of the parts would take it is the caller's to say.

        Raises:
            BadInput: always.
        """
        kinds = ", ".join(f"parts[{i}] is {type(p).__name__}" for i, p in enumerate(self.parts))
        raise BadInput(
            "a group of parameters belongs to one of the optimizers that are together here: call "
            f"add_param_group of one of them ({kinds})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "parts": self.parts}


class _States(MutableMapping[Tensor, Any]):
    """The states of several optimizers as one mapping, which keeps nothing itself."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = parts

    def __getitem__(self, parameter: Tensor) -> Any:
        return self._of(parameter)[parameter]

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._of(parameter)[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in part.state for part in self._parts)

    def __iter__(self) -> Iterator[Tensor]:
        for part in self._parts:
            yield from part.state

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)

    def clear(self) -> None:
        """Forgets all state."""
        for part in self._parts:
            part.state.clear()

    def _of(self, parameter: Tensor) -> MutableMapping[Tensor, Any]:
        for part in self._parts:
            if parameter in part.state or _has(part, parameter):
                return part.state
        raise KeyError(parameter)


def _has(part: torch.optim.Optimizer, parameter: Tensor) -> bool:
    return any(parameter is own for group in part.param_groups for own in group["params"])
