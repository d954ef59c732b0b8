"""LSTM, GRU and RNN on the virtual GPU run through cuDNN's kernels, as on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_events import allocations, mark
from torch import nn

OnGpu = Callable[..., Any]
T, B, INPUT, HIDDEN = 5, 3, 6, 8
OUTPUT_BYTES, STATE_BYTES = T * B * HIDDEN * 4, B * HIDDEN * 4
LSTM_WEIGHTS = 4 * HIDDEN * (INPUT + HIDDEN + 2)
"""Four gates, each with input weights, hidden weights and two biases."""


def sequence(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(T, B, INPUT, device="cuda", dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("bias", [True, False])
def test_moving_a_net_to_cuda_lays_its_weights_into_one_buffer(on_gpu: OnGpu, bias: bool) -> None:
    def run() -> tuple[int, bool]:
        net = nn.LSTM(INPUT, HIDDEN, bias=bias).to("cuda")
        starts = sorted(weight.data_ptr() for weight in net.parameters())
        is_one = starts[-1] - starts[0] < LSTM_WEIGHTS * 4
        return torch.cuda.memory_allocated(), is_one and net.weight_ih_l0.is_leaf

    assert on_gpu(run) == (LSTM_WEIGHTS * 4, True)  # with room for biases in any case


def test_forward_keeps_output_states_and_a_reserve(traced_on_gpu: OnGpu) -> None:
    def run() -> str:
        net = nn.LSTM(INPUT, HIDDEN, device="cuda")
        x = sequence()
        states = tuple(torch.rand(1, B, HIDDEN, device="cuda") for _ in range(2))
        mark()
        return type(net(x, states)[0].grad_fn).__name__

    node, timeline = traced_on_gpu(run)
    assert node == "CudnnRnnBackward0"
    workspace, reserve = T * B * 4 * HIDDEN * 4, T * B * 5 * HIDDEN * 4
    assert [num_bytes for _, num_bytes in allocations(timeline)] == [
        OUTPUT_BYTES,
        STATE_BYTES,
        STATE_BYTES,
        workspace,
        reserve,
    ]


def test_inference_keeps_no_reserve(on_gpu: OnGpu) -> None:
    def run() -> int:
        net = nn.GRU(INPUT, HIDDEN, device="cuda").eval()
        x = sequence()
        state = torch.rand(1, B, HIDDEN, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            kept = net(x, state)
        assert len(kept) == 2
        return torch.cuda.memory_allocated() - before

    assert on_gpu(run) == 512 + 512  # output and last state


def test_gradients_of_the_weights_share_one_buffer(on_gpu: OnGpu) -> None:
    def run() -> tuple[bool, int]:
        net = nn.LSTM(64, 128, device="cuda")
        output, _ = net(torch.rand(4, 2, 64, device="cuda"))
        before = torch.cuda.memory_allocated()
        output.sum().backward()
        del output
        starts = sorted(weight.grad.data_ptr() for weight in net.parameters())
        num_bytes = 4 * 128 * (64 + 128 + 2) * 4
        after = torch.cuda.memory_allocated()
        return starts[-1] - starts[0] < num_bytes, after - before < num_bytes + 1024

    assert on_gpu(run) == (True, True)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"proj_size": 4}),
        (nn.LSTM, {"bias": False, "num_layers": 2}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True, "dropout": 0.1}),
        (nn.RNN, {"batch_first": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_shapes_and_gradients_are_those_of_the_host(
    on_gpu: OnGpu, kind: Any, options: dict[str, Any]
) -> None:
    def shapes(device: str) -> list[Any]:
        net = kind(INPUT, HIDDEN, **options).to(device)
        x = torch.rand(T, B, INPUT, device=device, requires_grad=True)
        output, states = net(x)
        output.sum().backward()
        states = states if isinstance(states, tuple) else (states,)
        gradients = [x.grad, *(weight.grad for weight in net.parameters())]
        return [(tuple(t.shape), t.stride()) for t in (output, *states, *gradients)]

    here, host = on_gpu(lambda: shapes("cuda")), shapes("cpu")
    assert [shape for shape, _ in here] == [shape for shape, _ in host]


def test_batch_first_copies_the_input_and_returns_a_transposed_output(
    traced_on_gpu: OnGpu,
) -> None:
    def run() -> tuple[int, ...]:
        net = nn.RNN(INPUT, HIDDEN, batch_first=True, device="cuda")
        x = torch.rand(B, T, INPUT, device="cuda")
        state = torch.rand(1, B, HIDDEN, device="cuda")
        mark()
        return tuple(net(x, state)[0].stride())

    strides, timeline = traced_on_gpu(run)
    assert strides == (HIDDEN, B * HIDDEN, 1)
    assert allocations(timeline)[0][1] == B * T * INPUT * 4


def test_autocast_runs_in_fp16_and_gives_fp32_gradients(on_gpu: OnGpu) -> None:
    def run() -> list[str]:
        net = nn.LSTM(INPUT, HIDDEN, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output, _ = net(sequence())
        output.float().sum().backward()
        return [str(output.dtype), *{str(weight.grad.dtype) for weight in net.parameters()}]

    assert on_gpu(run) == ["torch.float16", "torch.float32"]


def test_packed_sequences_run_through_the_same_kernel(on_gpu: OnGpu) -> None:
    def run() -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        net = nn.LSTM(INPUT, HIDDEN, batch_first=True, device="cuda")
        x = torch.rand(B, T, INPUT, device="cuda")
        lengths = torch.tensor([5, 3, 2])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        output, _ = net(packed)
        node = type(output.data.grad_fn).__name__
        padded, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        padded.sum().backward()
        return node, tuple(output.data.shape), tuple(padded.shape)

    assert on_gpu(run) == ("CudnnRnnBackward0", (10, HIDDEN), (B, T, HIDDEN))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_bf16_and_switched_off_cudnn_run_cell_by_cell(on_gpu: OnGpu, kind: Any) -> None:
    def run() -> list[str]:
        nodes = []
        net = kind(INPUT, HIDDEN, device="cuda")
        with torch.backends.cudnn.flags(enabled=False):
            outputs = [net(sequence())[0]]
        net = kind(INPUT, HIDDEN, device="cuda", dtype=torch.bfloat16)
        outputs.append(net(sequence(torch.bfloat16))[0])
        for output in outputs:
            output.sum().backward()
            nodes.append(type(output.grad_fn).__name__)
        return nodes

    assert "CudnnRnnBackward0" not in on_gpu(run)


def test_weights_that_do_not_lie_in_one_buffer_are_gathered_for_each_call(on_gpu: OnGpu) -> None:
    def run() -> int:
        net = nn.LSTM(512, 512, device="cuda")
        for weight in net.parameters():
            weight.data = weight.data.clone()
        before = torch.cuda.memory_allocated()
        kept = net(torch.rand(1, 1, 512, device="cuda"))
        assert len(kept) == 2
        return torch.cuda.memory_allocated() - before

    assert on_gpu(run) > 4 * 512 * (512 + 512 + 2) * 4


def test_dropout_between_layers_takes_one_state_for_all_nets(on_gpu: OnGpu) -> None:
    def run() -> list[int]:
        nets = [nn.LSTM(INPUT, HIDDEN, 2, dropout=0.1, device="cuda") for _ in range(2)]
        taken = []
        for net in nets:
            before = torch.cuda.memory_allocated()
            net(sequence())
            taken.append(torch.cuda.memory_allocated() - before)
        return taken

    assert on_gpu(run) == [128 * 1536 * 48, 0]  # a random state for each thread of an RTX 4090


def test_cells_train(on_gpu: OnGpu) -> None:
    def run() -> list[tuple[int, ...]]:
        shapes = []
        for bias in (True, False):
            lstm = nn.LSTMCell(INPUT, HIDDEN, bias=bias, device="cuda")
            gru = nn.GRUCell(INPUT, HIDDEN, bias=bias, device="cuda")
            x = sequence()[0]
            h, c = lstm(x)
            (h + c + gru(x)).sum().backward()
            shapes += [
                tuple(weight.grad.shape) for weight in (*lstm.parameters(), *gru.parameters())
            ]
        return shapes

    def weights(gates: int, bias: bool) -> list[tuple[int, ...]]:
        rows = gates * HIDDEN
        return [(rows, INPUT), (rows, HIDDEN), *([(rows,)] * (2 * bias))]

    assert on_gpu(run) == [
        *(weights(4, True) + weights(3, True)),
        *(weights(4, False) + weights(3, False)),
    ]
