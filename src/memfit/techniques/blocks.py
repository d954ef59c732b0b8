"""The layers of a model: the modules that repeat, found by where they stand.

Nothing is run and no class is known by name.  A Transformer, and nearly every other deep model,
keeps its layers in lists, and what is in these lists is what people mean by its layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from torch import nn

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The model's layers, in order: what stands in its outermost lists, each once.

    A list is a ModuleList, or a Sequential or ModuleDict in which a class comes twice; its modules
    may be of several classes, as attention and Mamba in turn are, and encoder and decoder are two
    lists.  Of its modules those count that hold parameters and are more than one layer of
    PyTorch's.  What is nothing but a list, as the stage of a ResNet, is taken apart.  Lists inside
    of blocks, of experts or of convolutions, do not count.

    Empty when there is none: then a model's ModuleLists of single modules count, and if there are
    none of these either, the class with the most parameters in lists of PyTorch's own layers.
    """
    return (
        _blocks_of_lists(model, _is_outer_list)
        or _blocks_of_lists(model, lambda m: isinstance(m, _NOT_CALLED) and bool(_blocks_in(m)))
        or _alike_layers(model)
    )


def _blocks_of_lists(model: nn.Module, is_list: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """The blocks of the lists that are inside of no other."""
    found: list[nn.Module] = []
    seen: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not name.startswith(seen) and is_list(module):
            seen = (*seen, f"{name}." if name else "")
            for block in _blocks_in(module):
                found.extend(_taken_apart(block))
    # A block that is shared may stand in a list and inside of another block too.
    inner = {id(m) for block in found for m in block.modules() if m is not block}
    return [block for block in dict.fromkeys(found) if id(block) not in inner]


def _is_outer_list(module: nn.Module) -> bool:
    """Whether it is a list of blocks wherever it stands: a Sequential of one may be the model."""
    num_blocks, num_kinds = _blocks_and_kinds(module)
    return num_kinds < num_blocks or (num_blocks == 1 and isinstance(module, nn.ModuleList))


def _blocks_and_kinds(module: nn.Module) -> tuple[int, int]:
    blocks = _blocks_in(module) if isinstance(module, _LISTS) else []
    return len(blocks), len({type(block) for block in blocks})


def _blocks_in(container: nn.Module) -> list[nn.Module]:
    return [m for m in container.children() if _has_parameters(m) and not _is_layer_of_torch(m)]


def _taken_apart(block: nn.Module) -> list[nn.Module]:
    """The blocks of a stage; of anything that is more than a list, itself."""
    children = list(block.children())
    rows = [block] if isinstance(block, _LISTS) else children
    if len(rows) != 1 or next(block.parameters(recurse=False), None) is not None:
        return [block]
    if not _is_never_called(block):
        num_blocks, num_kinds = _blocks_and_kinds(rows[0])
        others = [m for m in rows[0].children() if _has_parameters(m) and _is_layer_of_torch(m)]
        if others or not (num_kinds == 1 or num_kinds < num_blocks):
            return [block]
    return [part for inner in _blocks_in(rows[0]) for part in _taken_apart(inner)]


def _is_never_called(module: nn.Module) -> bool:
    return isinstance(module, _NOT_CALLED) and type(module).forward is nn.Module.forward


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_layer_of_torch(module: nn.Module) -> bool:
    """A linear layer, a convolution, a norm, an embedding, or a kind of one: nothing to save."""
    return (
        next(module.children(), None) is None
        and not isinstance(module, (*_LISTS, nn.RNNBase))
        and any(
            base is not nn.Module and base.__module__.startswith("torch.nn.modules.")
            for base in type(module).__mro__
        )
    )


def _alike_layers(model: nn.Module) -> list[nn.Module]:
    """Layers of PyTorch's own: of the classes that stand in lists of them, the largest."""
    kinds: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    for container in model.modules():
        children = list(container.children()) if isinstance(container, _LISTS) else []
        if len({type(child) for child in children}) == 1:
            kinds[type(children[0])].extend(children)
    candidates = [list(dict.fromkeys(blocks)) for blocks in kinds.values() if len(blocks) > 1]
    return max(candidates, key=_num_parameters, default=[])


def _num_parameters(blocks: list[nn.Module]) -> int:
    return sum(p.numel() for block in blocks for p in block.parameters())
