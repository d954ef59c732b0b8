"""Several optimizers together are one optimizer to everyone who asks."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.optimizers.muon_8bit import Muon8bit
from memfit.optimizers.together import Together, parts


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def separate(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    first, _, last = model
    return [
        Muon8bit([first.weight], lr=0.02),
        torch.optim.AdamW(
            [{"params": [last.weight]}, {"params": [first.bias, last.bias], "weight_decay": 0.0}],
            lr=1e-2,
        ),
    ]


def backward(model: nn.Module, number: int = 0) -> torch.Tensor:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(number))
    loss = F.mse_loss(model(x), torch.ones(5, 3))
    loss.backward()
    return loss


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_step_together_is_the_steps_one_after_the_other():
    alone, joined = model_of(), model_of()
    optimizers, together = separate(alone), Together(separate(joined))
    for number in range(3):
        backward(alone, number)
        backward(joined, number)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        together.step()
        together.zero_grad()

    assert same(weights(alone), weights(joined))
    assert all(parameter.grad is None for parameter in joined.parameters())


def test_groups_are_the_same_dicts_and_state_reads_and_writes_through():
    model = model_of()
    together = Together(separate(model))
    muon, adamw = together.parts
    backward(model)
    together.step()

    expected = [*muon.param_groups, *adamw.param_groups]
    assert all(a is b for a, b in zip(together.param_groups, expected, strict=True))
    weight, bias = model[0].weight, model[0].bias
    assert together.state[weight] is muon.state[weight]
    assert together.state[bias] is adamw.state[bias]
    assert set(together.state) == set(model.parameters()) and len(together.state) == 4
    del together.state[weight]
    assert weight not in muon.state and weight not in together.state
    together.state[weight] = {"mark": 1}
    assert muon.state[weight] == {"mark": 1}
    with pytest.raises(KeyError):
        together.state[torch.ones(1)]
    together.state.clear()
    assert not muon.state and not adamw.state


def test_a_saved_state_goes_on_bit_for_bit():
    here, there = model_of(), model_of()
    together, resumed = Together(separate(here)), Together(separate(there))
    backward(here)
    together.step()
    together.param_groups[2]["lr"] = 0.5
    there.load_state_dict(here.state_dict())
    resumed.load_state_dict(copy.deepcopy(together.state_dict()))
    for number in (1, 2):
        for model, optimizer in ((here, together), (there, resumed)):
            optimizer.zero_grad()
            backward(model, number)
            optimizer.step()

    assert same(weights(here), weights(there))
    assert resumed.param_groups[2]["lr"] == 0.5
    assert resumed.param_groups[0] is resumed.parts[0].param_groups[0]


def test_a_state_dict_has_the_form_of_any_optimizers():
    model = model_of()
    together = Together(separate(model))
    backward(model)
    together.step()

    saved = together.state_dict()

    assert [group["params"] for group in saved["param_groups"]] == [[0], [1], [2, 3]]
    assert sorted(saved["state"]) == [0, 1, 2, 3]
    assert saved["state"][0]["momentum_codes"].dtype == torch.int8


def test_a_state_dict_of_other_groups_is_refused_before_anything_is_loaded():
    model = model_of()
    together = Together(separate(model))
    saved = together.state_dict()
    saved["param_groups"][0]["lr"] = 99.0
    saved["param_groups"][2]["params"] = [2]

    with pytest.raises(ValueError, match=r"groups of \[1, 1, 1\] parameters, the optimizer of"):
        together.load_state_dict(saved)

    assert together.param_groups[0]["lr"] == 0.02


def test_hooks_closures_and_loading_hooks_are_called_once():
    model = model_of()
    together = Together(separate(model))
    calls = []
    together.register_step_pre_hook(lambda *_: calls.append("before"))
    together.register_step_post_hook(lambda *_: calls.append("after"))
    together.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    together.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))

    def closure() -> torch.Tensor:
        calls.append("closure")
        return backward(model)

    assert together.step(closure).item() > 0
    together.load_state_dict(together.state_dict())

    assert calls == ["before", "closure", "after", "load", "loaded"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_goes_on_by_itself(copied):
    model = model_of()
    together = Together(separate(model))
    backward(model)
    together.step()
    other_model, other = copied((model, together))
    together.zero_grad()
    other.zero_grad()
    backward(model, 1)
    together.step()
    assert not same(weights(model), weights(other_model))
    backward(other_model, 1)
    other.step()

    assert same(weights(model), weights(other_model))


def test_a_scheduler_of_pytorch_sets_the_rate_of_every_group():
    model = model_of()
    together = Together(separate(model))
    scheduler = torch.optim.lr_scheduler.LambdaLR(together, lambda step: 0.5**step)
    backward(model)
    together.step()
    scheduler.step()

    assert [group["lr"] for group in together.param_groups] == [0.01, 0.005, 0.005]


def test_a_gradient_scaler_unscales_all_and_skips_all():
    model = model_of()
    together = Together(separate(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = weights(model)
    backward(model)
    scaler.scale(torch.ones(()))  # so that the scaler has a scale
    model[0].bias.grad.fill_(float("inf"))
    scaler.step(together)
    scaler.update()

    assert same(weights(model), before)


def test_parts_of_parts_are_found_and_an_ordinary_optimizer_is_its_own_part():
    model = model_of()
    muon, adamw = separate(model)
    inner = Together([muon])

    assert parts(Together([inner, adamw])) == [muon, adamw]
    assert parts(adamw) == [adamw]


def test_a_parameter_in_two_optimizers_is_refused():
    parameter = nn.Parameter(torch.ones(2))
    with pytest.raises(BadInput, match="1 parameters are in two of the optimizers"):
        Together([torch.optim.SGD([parameter]), torch.optim.SGD([parameter])])
    with pytest.raises(BadInput, match="at least one optimizer"):
        Together([])


def test_a_group_is_added_to_one_of_the_parts_and_seen_by_all():
    model = model_of()
    together = Together(separate(model))
    late = nn.Parameter(torch.ones(2))
    with pytest.raises(BadInput, match=r"parts\[0\] is Muon8bit, parts\[1\] is AdamW"):
        together.add_param_group({"params": [late]})

    together.parts[1].add_param_group({"params": [late]})

    assert together.param_groups[-1]["params"] == [late]
