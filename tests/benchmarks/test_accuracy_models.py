"""The models of the accuracy table are those that were measured."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from benchmarks.accuracy import course_a, course_b, old_torch
from benchmarks.accuracy.bert_optimizers import Adam8bit, LoopAdamW
from benchmarks.accuracy.course_adamw import CourseAdamW


@pytest.mark.parametrize(
    ("size", "published"),
    [
        ("small", 128_625_408),
        ("medium", 423_183_360),
        ("xl", 3_406_809_600),
        ("10b", 12_832_823_808),
    ],
)
def test_course_model_a_has_the_published_number_of_parameters(size: str, published: int) -> None:
    with torch.device("meta"):
        model = course_a.CourseModelA(course_a.SIZES[size], context_length=512)
    assert sum(p.numel() for p in model.parameters()) == published


TINY = course_a.Size(d_model=16, d_ff=24, num_layers=3, num_heads=2)


def test_course_model_a_is_causal() -> None:
    torch.manual_seed(0)
    model = course_a.CourseModelA(TINY, context_length=8)
    ids = torch.randint(0, course_a.VOCAB_SIZE, (2, 8))
    changed = ids.clone()
    changed[:, 5:] = 7
    assert_close(model(ids)[:, :5], model(changed)[:, :5])


def test_checkpointing_changes_no_logit_and_no_gradient() -> None:
    torch.manual_seed(0)
    plain = course_a.CourseModelA(TINY, context_length=8)
    saving = course_a.CourseModelA(TINY, context_length=8, layers_per_segment=2)
    saving.load_state_dict(plain.state_dict())
    ids = torch.randint(0, course_a.VOCAB_SIZE, (2, 8))
    for model in (plain, saving):
        course_a.cross_entropy(model(ids), ids).backward()
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_its_cross_entropy_is_that_of_torch() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 11), torch.randint(0, 11, (2, 5))
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert_close(course_a.cross_entropy(logits, labels), expected)


def test_the_loss_of_course_model_b_is_the_cross_entropy_of_its_logits() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 11), torch.randint(0, 11, (4,))
    loss = course_b.LastPositionLoss()(logits, labels)
    assert_close(loss, nn.functional.cross_entropy(logits, labels))


def stepped(optimizer_of: object, weight_decay: float) -> torch.Tensor:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 4))
    optimizer = optimizer_of([weight])  # type: ignore[operator]
    for group in optimizer.param_groups:
        group["weight_decay"] = weight_decay
    for _ in range(3):
        optimizer.zero_grad()
        (weight.pow(2).sum() + weight.sum()).backward()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("kind", [CourseAdamW, course_b.OwnAdam, LoopAdamW])
def test_adam_by_hand_steps_as_torch_does(kind: type[torch.optim.Optimizer]) -> None:
    # Without decay, whose place in the step differs; epsilon's place makes a last digit.
    mine = stepped(lambda weights: kind(weights, lr=1e-3), weight_decay=0.0)
    adam = stepped(lambda weights: torch.optim.Adam(weights, lr=1e-3), weight_decay=0.0)
    assert_close(mine, adam, rtol=1e-5, atol=1e-6)


def test_eight_bit_states_take_two_bytes_an_element_and_a_float_per_block_and_state() -> None:
    large, small = nn.Parameter(torch.zeros(5000)), nn.Parameter(torch.zeros(4095))
    optimizer = Adam8bit([large, small])
    for weight in (large, small):
        weight.grad = torch.zeros_like(weight)
    optimizer.step()

    def state_bytes(weight: nn.Parameter) -> int:
        return sum(t.untyped_storage().nbytes() for t in optimizer.state[weight].values())

    assert state_bytes(large) == 2 * 5000 + 2 * 3 * 4
    assert state_bytes(small) == 2 * 4095 * 4


def test_softmax_as_it_was_keeps_its_input_and_has_todays_gradient() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, requires_grad=True)
    with old_torch.old_softmax():
        y = nn.functional.softmax(x, dim=-1)
    assert any(saved is x for saved in y.grad_fn.saved_tensors)
    (old,) = torch.autograd.grad(y.pow(2).sum(), x)
    (new,) = torch.autograd.grad(nn.functional.softmax(x, dim=-1).pow(2).sum(), x)
    assert torch.equal(old, new)
