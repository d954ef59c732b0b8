"""The chunked loss is the full one: its numbers, its gradients, and a tenth of its memory."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from small_jobs import JOBS, run_of
from torch import nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.job import Job
from memfit.models.gpt import GPTConfig, gpt_job
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.techniques import chunked_cross_entropy
from memfit.techniques.apply import apply
from memfit.techniques.chunked_cross_entropy import rows_of_a_chunk
from memfit.techniques.loss import PendingLogits, chunk_loss, in_chunks, output_head
from memfit.tracing.step import trace

CHUNKED = Recipe(loss="chunked")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks, of which the last is shorter, in runs this small."""
    monkeypatch.setattr(chunked_cross_entropy, "rows_of_a_chunk", lambda n, v: 10)


@pytest.fixture
def in_a_step():
    """As if a step ran the loss."""
    with in_chunks(CHUNKED):
        yield


as_in_a_step = pytest.mark.usefixtures("in_a_step")


def deltas(timeline):
    columns = (timeline.deltas(), timeline.phases, timeline.steps)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama", "bert", "vit"])
def test_the_predicted_curve_is_the_measured_one(name, checkpointing):
    recipe = Recipe(loss="chunked", batch_size=2, accumulate=2, checkpointing=checkpointing)
    steps = run_of(JOBS[name](), recipe)
    steps(Capture())
    capture = Capture()
    predicted = trace(steps)
    with capture:
        steps(capture)
    assert deltas(predicted) == deltas(capture.timeline)


def losses(logits, targets, kind):
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    logits = logits.flatten(0, 1)
    if kind == "softcap":
        logits = 15 * torch.tanh(logits / 15)
    if kind == "smooth":
        return F.cross_entropy(logits, targets, label_smoothing=0.1)
    if kind == "none":
        rows = F.cross_entropy(logits, targets, reduction="none")
        return (rows * torch.arange(len(rows), dtype=rows.dtype)).sum()
    loss = F.cross_entropy(logits, targets, reduction="sum" if kind == "sum" else "mean")
    if kind == "z-loss":
        loss = loss + 1e-2 * torch.logsumexp(logits, -1).square().mean()
    return loss


KINDS = ["mean", "sum", "none", "smooth", "softcap", "z-loss", "ignored"]


@as_in_a_step
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_the_gradients_are_those_of_the_full_loss(kind, bias, dtype, tolerance):
    torch.manual_seed(0)
    full = nn.Linear(8, 50, bias=bias, dtype=torch.float64)
    hidden = torch.randn(23, 3, 8, dtype=torch.float64).transpose(0, 1).requires_grad_()
    targets = torch.randint(50, (69,))
    targets[::3] = -100
    if kind == "ignored":
        targets.fill_(-100)
    expected = losses(full(hidden), targets, kind)
    expected.backward()

    head = copy.deepcopy(full).to(dtype)
    head.zero_grad()
    chunk_loss(head, CHUNKED)
    mine = hidden.detach().to(dtype).requires_grad_()
    found = losses(head(mine), targets, kind)
    found.backward()

    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance, equal_nan=True)
    close(found.double(), expected)
    close(mine.grad.double(), hidden.grad)
    for one, other in zip(head.parameters(), full.parameters(), strict=True):
        close(one.grad.double(), other.grad, atol=tolerance * max(1, other.grad.abs().max().item()))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-pure"])
@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama"])
def test_a_step_and_an_evaluation_are_those_of_the_full_loss(name, precision):
    job = JOBS[name]()
    norms = []
    for loss in ("full", "chunked"):
        torch.manual_seed(0)
        _, _, step = apply(job, Recipe(loss=loss, precision=precision, batch_size=2))
        batch = job.batch(2, 24)
        before = step.evaluate(batch)
        done = step(batch)
        norms.append((before.loss_sum / before.num_targets, done.loss, done.grad_norm))
    tolerance = 2e-6 if precision == "fp32" else 2e-2
    assert norms[1] == pytest.approx(norms[0], rel=tolerance)


@as_in_a_step
def test_a_hugging_face_models_own_loss_is_chunked():
    model = JOBS["llama"]().model()
    tokens = torch.randint(96, (2, 24))
    expected = model(input_ids=tokens, labels=tokens).loss
    chunk_loss(model, CHUNKED)
    found = model(input_ids=tokens, labels=tokens)
    assert isinstance(found.logits, PendingLogits)
    torch.testing.assert_close(found.loss, expected)


def _words_after(model, tokens):
    """Sampling as people write it: the most likely words, and one of them drawn."""
    for _ in range(3):
        logits = model(tokens)[:, -1] / 0.7
        least = torch.topk(logits, 5).values[:, [-1]]
        logits[logits < least] = -float("inf")
        chosen = torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator())
        tokens = torch.cat([tokens, chosen], 1)
    return tokens


@pytest.mark.parametrize("gradients", [True, False])
def test_outside_of_a_step_the_model_is_an_ordinary_one(gradients):
    torch.manual_seed(0)
    job = JOBS["gpt"]()
    plain = job.model()
    model, _, step = apply(job, CHUNKED)
    step(job.batch(1, 24))
    model.load_state_dict(plain.state_dict())
    tokens = torch.randint(96, (2, 8))
    with torch.set_grad_enabled(gradients):
        for other in (model, copy.deepcopy(model)):
            assert torch.equal(other(tokens), plain(tokens))
            assert torch.equal(_words_after(other, tokens), _words_after(plain, tokens))


def test_outside_of_a_step_a_loss_of_ones_own_is_the_full_one():
    torch.manual_seed(0)
    job = JOBS["llama"]()
    plain = job.model()
    model, _, _ = apply(job, CHUNKED)
    model.load_state_dict(plain.state_dict())
    tokens = torch.randint(96, (2, 24))
    for either in (model, plain):
        found = either(input_ids=tokens, labels=tokens, use_cache=False)
        (found.loss + found.logits.softmax(-1).square().sum()).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_hugging_face_model_generates_between_steps():
    torch.manual_seed(0)
    job = JOBS["gpt2"]()
    plain = job.model()
    model, _, step = apply(job, CHUNKED.but(checkpointing="full"))
    step(job.batch(1, 24))
    model.load_state_dict(plain.state_dict())
    words = [
        either.eval().generate(
            torch.ones(1, 4, dtype=torch.int64), max_new_tokens=4, pad_token_id=0
        )
        for either in (model, plain)
    ]
    assert torch.equal(*words)


def test_a_step_and_an_evaluation_get_pending_logits_and_an_error_in_one_ends_that():
    job = JOBS["gpt"]()
    seen = []

    def loss(model, batch):
        seen.append(model(batch[:, :-1]))
        if len(seen) == 3:
            raise ValueError("of the user's own")
        return job.loss(model, batch)

    model, _, step = apply(dataclasses.replace(job, loss=loss), CHUNKED)
    batch = job.batch(1, 24)
    step(batch)
    step.evaluate(batch)
    with pytest.raises(ValueError, match="of the user's own"):
        step(batch)
    assert [type(logits) for logits in seen] == [PendingLogits] * 3
    assert isinstance(model(batch), torch.Tensor)


def test_a_loss_in_ones_own_loop_is_in_chunks_where_it_says_so():
    job = JOBS["gpt"]()
    model, _, _ = apply(job, CHUNKED)
    tokens = torch.randint(96, (2, 8))
    with in_chunks(CHUNKED):
        assert isinstance(model(tokens), PendingLogits)
        with in_chunks(Recipe()):
            assert isinstance(model(tokens), torch.Tensor)
        assert isinstance(model(tokens), PendingLogits)


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_a_head_inside_of_a_block_that_is_computed_again_is_in_chunks_too(checkpointing):
    class Layer(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, size)

        def forward(self, x):
            return self.linear(self.norm(x))

    job = Job(
        model=lambda: nn.Sequential(nn.Embedding(50, 8), Layer(8), Layer(8), Layer(50)),
        batch=lambda batch_size, seq_len: torch.randint(50, (batch_size, 25)),
        loss=lambda model, ids: F.cross_entropy(
            model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        ),
    )
    norms = []
    for recipe in (Recipe(), CHUNKED, CHUNKED.but(checkpointing=checkpointing)):
        torch.manual_seed(0)
        _, _, step = apply(job, recipe)
        norms.append(step(job.batch(2, 1)).grad_norm)
    assert norms[2] == norms[1]
    assert norms[1] == pytest.approx(norms[0], rel=2e-6)


def test_a_loss_of_a_large_vocabulary_takes_a_tenth_of_the_memory(monkeypatch):
    monkeypatch.setattr(chunked_cross_entropy, "rows_of_a_chunk", rows_of_a_chunk)
    config = GPTConfig(num_layers=1, dim=64, num_heads=1, num_kv_heads=1, vocab_size=50_257)
    job = gpt_job(config)

    def loss_bytes(loss):
        def steps(observer, length):
            from memfit.techniques import run

            applied = run.build(job, Recipe(loss=loss, batch_size=4), observer)
            run.take_step(applied, 1, lambda: job.batch(4, length), observer)

        def peak(length):
            timeline = trace(partial(steps, length=length))
            return max(
                total
                for total, phase in zip(
                    timeline.curve().tolist(), timeline.phases.tolist(), strict=True
                )
                if phase in (1, 2)
            )

        return peak(1024) - peak(1)

    assert loss_bytes("full") >= 10 * loss_bytes("chunked")


def test_chunks_are_even_and_bounded():
    for rows in (1, 127, 129, 4096, 8191):
        step = rows_of_a_chunk(rows, 50_257)
        assert 1 <= step <= max(128, -(-rows // 16))


@as_in_a_step
@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: x.softmax(-1),
        lambda x: torch.argmax(x, -1),
        lambda x: x[..., 0],
        lambda x: x.transpose(0, 1),
        lambda x: F.log_softmax(x, -1),
        lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64), torch.ones(9)),
        lambda x: torch.ones(1) * x,
        lambda x: x.argmax(-1),
        lambda x: x.detach(),
        lambda x: x.to("meta"),
        lambda x: x.to(torch.ones(1, device="meta")),
        lambda x: x == 0,
        lambda x: x != x,
        lambda x: 2**x % 3 // 4,
        lambda x: torch.stack([x, x]),
        lambda x: torch.tensor(x.numpy()),
        lambda x: torch.tensor(np.asarray(x)),
        lambda x: torch.tensor(x.tolist()),
        abs,
        iter,
    ],
)
def test_what_needs_the_logits_is_refused_in_training_and_given_without_gradients(use):
    head = nn.Linear(3, 9)
    chunk_loss(head, CHUNKED)
    hidden = torch.randn(4, 3)
    with pytest.raises(BadInput, match="write --loss full"):
        use(head(hidden))
    with torch.no_grad():
        found = use(head(hidden))
        expected = use(F.linear(hidden, head.weight, head.bias))
        if isinstance(found, torch.Tensor):
            torch.testing.assert_close(found, expected)


@as_in_a_step
@pytest.mark.parametrize(
    "use", [lambda x: x.div_(2), lambda x: x.masked_fill_(True, 0), lambda x: x.__setitem__(0, 1)]
)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_change_in_place_would_be_lost_and_is_refused(use, gradients):
    head = nn.Linear(3, 9)
    chunk_loss(head, CHUNKED)
    with torch.set_grad_enabled(gradients), pytest.raises(BadInput, match="changes them in place"):
        use(head(torch.randn(4, 3)))


@as_in_a_step
def test_what_a_training_loop_only_looks_at_is_read_without_gradients():
    """Accuracy beside the loss, as loops take it."""
    head = nn.Linear(3, 9)
    hidden, targets = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    expected = (head(hidden).argmax(-1) == targets).float().mean()
    chunk_loss(head, CHUNKED)
    logits = head(hidden)
    with pytest.raises(BadInput, match=r"asks them for argmax, .* under torch\.no_grad\(\)"):
        logits.argmax(-1)
    with torch.no_grad():
        assert (logits.argmax(-1) == targets).float().mean() == expected
    F.cross_entropy(logits, targets).backward()
    assert head.weight.grad is not None


@as_in_a_step
@pytest.mark.parametrize("place", ["cuda:1", "cuda", torch.device("cuda", 1), 1])
def test_moving_to_another_device_is_refused_by_its_name(place):
    head = nn.Linear(3, 9)
    chunk_loss(head, CHUNKED)
    logits = head(torch.randn(4, 3))
    number = str(place) if place != 1 else "number 1"
    with pytest.raises(BadInput, match=rf"moves them to another device \({number}\)"):
        logits.to(place)
    with pytest.raises(BadInput, match=rf"moves them to another device \({number}\)"):
        logits.cuda(place)
    # As one GPU beside another.
    logits.device = torch.device("cuda", 0)
    if place == "cuda":
        assert logits.cuda() is not None
    else:
        with pytest.raises(BadInput, match="moves them to another device"):
            logits.to(device=place)


@as_in_a_step
def test_a_move_to_where_they_are_keeps_them_pending():
    head = nn.Linear(3, 9)
    chunk_loss(head, CHUNKED)
    logits = head(torch.randn(4, 3))
    other = torch.ones(1, dtype=torch.float64)
    for there in (logits.cpu(), logits.to("cpu"), logits.to("cpu:0"), logits.to(other)):
        assert isinstance(there, PendingLogits)
    assert logits.to(other).dtype == torch.float64
    assert repr(logits) == "PendingLogits(shape=(4, 9), dtype=torch.float32, device=cpu)"
    with pytest.raises(BadInput, match="write --loss full"):
        bool(logits)


@as_in_a_step
def test_the_second_derivative_and_a_second_backward_are_refused():
    head = nn.Linear(3, 9)
    chunk_loss(head, CHUNKED)
    loss = F.cross_entropy(head(torch.randn(4, 3)), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(BadInput, match="no second derivative"):
        torch.autograd.grad(loss, head.weight, create_graph=True)
    loss.backward(retain_graph=True)
    with pytest.raises(BadInput, match="a second time"):
        loss.backward()


@as_in_a_step
def test_a_head_that_is_frozen_gets_no_gradient():
    head = nn.Linear(3, 9).requires_grad_(False)
    chunk_loss(head, CHUNKED)
    hidden = torch.randn(4, 3, requires_grad=True)
    F.cross_entropy(head(hidden), torch.zeros(4, dtype=torch.int64)).backward()
    assert head.weight.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize(("name", "path"), [("gpt", "head"), ("gpt2", "lm_head")])
def test_the_head_is_found(name, path):
    model = JOBS[name]().model()
    assert output_head(model) is model.get_submodule(path)


@as_in_a_step
def test_in_fp16_a_gradient_that_only_scaling_keeps_is_kept():
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0, 0.0], [-18.0, 0.0]]))
    chunk_loss(head, CHUNKED)
    hidden = torch.tensor([[1.0, 0.0]]).expand(24, 2).clone().requires_grad_()
    targets = torch.zeros(24, dtype=torch.int64)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(head(hidden), targets, reduction="sum")
    (loss * 2**16).backward()
    # The other class has probability exp(-18) = 1.5e-8, below half of fp16's least number.
    wrong = torch.sigmoid(torch.tensor(-18.0, dtype=torch.float64))
    expected = torch.stack([-18 * wrong, 0 * wrong]).expand(24, 2) * 2**16
    torch.testing.assert_close(hidden.grad.double(), expected, rtol=2e-3, atol=1e-9)


@as_in_a_step
def test_in_bf16_chunks_add_up_without_losing_the_last():
    torch.manual_seed(0)
    head = nn.Linear(8, 16, dtype=torch.bfloat16)
    chunk_loss(head, CHUNKED)
    hidden = (1 + torch.rand(4000, 8)).bfloat16()
    targets = torch.zeros(4000, dtype=torch.int64)
    F.cross_entropy(head(hidden), targets, reduction="sum").backward()
    full = [p.detach().double().requires_grad_() for p in head.parameters()]
    F.cross_entropy(F.linear(hidden.double(), *full), targets, reduction="sum").backward()
    for one, other in zip(head.parameters(), full, strict=True):
        assert (one.grad.double() - other.grad).norm() < 5e-3 * other.grad.norm()
