"""What an op is said to return is what it returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_jobs import JOBS, run_of
from torch.utils import _pytree as pytree

from memfit.records.recipe import Recipe
from memfit.tracing.calls import call_below, rebuild
from memfit.tracing.dispatch import Dispatch
from memfit.tracing.hidden.learn import resolve, zeros_for
from memfit.tracing.log import Log
from memfit.tracing.modules import ModulePaths
from memfit.tracing.shapes import Fresh, infer_outputs
from memfit.tracing.watch import Watch


def described(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (list(leaf.shape), list(leaf.stride()), leaf.dtype)
    return leaf


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
@pytest.mark.parametrize("name", JOBS)
def test_inferred_outputs_are_the_kernels_own(name: str, precision: str) -> None:
    log, modules = Log(), ModulePaths()
    dispatch = Dispatch(log, modules)
    with modules, dispatch:
        recipe = Recipe(precision=precision, batch_size=2, checkpointing="every:2")
        run_of(JOBS[name](), recipe, num_steps=1)(Watch(dispatch, modules))
    compared = 0
    for call in log.calls:
        op = resolve(call.op)
        if any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments):
            continue
        inferred = infer_outputs(op, call).leaves
        args, kwargs = rebuild(call, zeros_for(call))
        real = pytree.tree_leaves(call_below(op, args, kwargs))
        expected = [
            (leaf.size, leaf.stride, leaf.dtype) if isinstance(leaf, Fresh) else leaf
            for leaf in inferred
        ]
        assert expected == [described(leaf) for leaf in real], call
        compared += 1
    assert compared > 40
