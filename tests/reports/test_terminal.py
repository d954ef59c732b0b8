from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from memfit.records.plan import Plan, Rejected
from memfit.records.recipe import Recipe
from memfit.reports import terminal


@pytest.fixture
def printed():
    """What a printing function writes on a terminal 80 columns wide."""

    def run(function, record):
        console = Console(width=80, color_system=None)
        with console.capture() as capture:
            function(console, record)
        return [line.rstrip() for line in capture.get().splitlines()]

    return run


def test_what_a_prediction_should_be_weighed_by_is_said(printed, prediction):
    facts = {"unknown values read": "train.py:7 (answered with 1.0, 1 or False)"}
    doubted = replace(prediction, timeline=replace(prediction.timeline, facts=facts))
    lines = printed(terminal.print_prediction, doubted)
    assert "Note: unknown values read: train.py:7 (answered with 1.0, 1 or False)" in lines


def test_a_prediction_in_the_terminal(printed, prediction):
    prediction = replace(prediction, learnt_bytes=5000)
    assert printed(terminal.print_prediction, prediction) == [
        "Fits: 10.21 GiB of 16.00 GiB, 5.79 GiB to spare",
        "gpt2 · 1,024 tokens · batch 8 · fp32 · adamw · on cpu",
        "",
        "  requested  10.21 GiB",
        "  allocated  10.21 GiB",
        "  reserved   10.21 GiB",
        "  device     10.21 GiB",
        "",
        "The peak is in step 2, backward, at aten::_log_softmax_backward_data.",
        "",
        "At the peak",
        "  Loss              4.60 GiB  45 %  ███████████",
        "  Activations       4.22 GiB  41 %  ██████████",
        "  Optimizer state  948.5 MiB   9 %  ██",
        "  Parameters       474.2 MiB   5 %  █",
        "  Inputs            32.0 KiB  <1 %  ▏",
        "",
        "Peak of each phase",
        "  Init       474.2 MiB  █",
        "  Forward     8.68 GiB  ████████████████████",
        "  Backward   10.21 GiB  ████████████████████████",
        "  Optimizer   2.00 GiB  █████",
        "",
        "Largest tensors at the peak",
        "  Size       Tensor                   Module and op              Category",
        "   1.53 GiB  float32[8, 1024, 50257]  lm_head aten::mm           Loss",
        "   1.53 GiB  float32[8, 1024, 50257]  aten::_log_softmax         Loss",
        "   1.53 GiB  float32[8, 1024, 50257]  aten::_log_softmax_backwa  Loss",
        "                                      rd_data",
        "  147.2 MiB  float32[50257, 768]      wte aten::empty            Parameters",
        "  147.2 MiB  float32[50257, 768]      wte aten::zeros_like       Optimizer state",
        "  147.2 MiB  float32[50257, 768]      wte aten::zeros_like       Optimizer state",
        "   96.0 MiB  float32[8, 1024, 3072]   h.0.mlp.c_fc aten::addmm   Activations",
        "   96.0 MiB  float32[8, 1024, 3072]   h.0.mlp.act aten::gelu     Activations",
        "",
        "4.9 KiB of the peak was learnt by running ops once.",
        "",
        "Predicted in 3.4 s.",
    ]


def test_a_gpu_in_the_terminal(printed, gpu_prediction):
    lines = printed(terminal.print_prediction, gpu_prediction)
    peaks, uncertain = lines.index(""), lines.index("What is not certain")
    assert lines[: peaks + 6] == [
        "Fits: 11.48 GiB, at most 11.65 GiB, of 24.00 GiB, 12.35 GiB to spare",
        "gpt2 · 1,024 tokens · batch 8 · fp32 · adamw · on rtx-4090",
        "",
        "  requested  10.21 GiB",
        "  allocated  10.21 GiB  within 1.0 KiB",
        "  reserved   10.99 GiB  10.99 GiB to 11.01 GiB  801.4 MiB not handed out",
        "  device     11.48 GiB  11.34 GiB to 11.65 GiB  500.0 MiB outside the allocator",
        "",
    ]
    assert lines[uncertain:] == [
        "What is not certain",
        "  segment addresses    +20.0 MiB",
        "    the driver decides",
        "  CUDA context         −150.0 MiB, +150.0 MiB",
        "    measured by others",
        "  unknown values read  not counted",
        "    train.py:7",
        "",
        "The allocator is that of torch 2.12 with expandable_segments:False; 3 steps",
        "simulated, which repeat; the step was run by torch 2.13.0.",
        "",
        "Predicted in 3.4 s.",
    ]


def test_a_prediction_that_does_not_fit_says_so_first(printed, prediction):
    lines = printed(terminal.print_prediction, replace(prediction, budget_bytes=9 << 30))
    assert lines[0] == "Does not fit: 10.21 GiB of 9.00 GiB, 1.21 GiB too much"


def test_a_plan_in_the_terminal(printed):
    plan = Plan(
        target="gpt2",
        recipe=Recipe(batch_size=4, accumulate=8, checkpointing="every:2"),
        device="cpu",
        seq_len=1024,
        budget_bytes=3 << 30,
        predicted_peak_bytes=2 << 30,
        reason="the largest micro-batch that fits",
        rejected=(
            Rejected(
                batch_size=8,
                checkpointing="none",
                peak_bytes=10 << 30,
                reason="needs 7.00 GiB more",
            ),
            Rejected(
                batch_size=2, checkpointing="none", peak_bytes=1 << 30, reason="fits, but is slower"
            ),
        ),
    )
    assert printed(terminal.print_plan, plan) == [
        "Plan: batch 4 × 8 · fp32 · adamw · checkpointing every:2; 2.00 GiB of 3.00 GiB",
        "the largest micro-batch that fits",
        "",
        "Also tried",
        "  Batch  Checkpointing  Peak       Why not",
        "  8      none           10.00 GiB  needs 7.00 GiB more",
        "  2      none            1.00 GiB  fits, but is slower",
    ]


def test_a_run_in_the_terminal(printed, runlog_of):
    assert printed(terminal.print_run, runlog_of(predicted=1 << 30)) == [
        "Trained gpt2",
        "  Steps                   200",
        "  Time                    1 min 40 s",
        "  Training loss           10.615 → 3.088",
        "  Evaluation loss         3.153",
        "  Targets per second      16,384",
        "  Tensor peak, measured   1.00 GiB",
        "  Tensor peak, predicted  1.00 GiB",
        "  Budget                  2.00 GiB",
        "  Whole process           2.05 GiB",
        "  Difference              equal to the byte",
    ]


def test_a_name_cannot_style_or_steer_the_terminal(printed, prediction, renamed):
    hostile = "[red]x[/]\x1b[2J\x07"
    lines = "\n".join(printed(terminal.print_prediction, renamed(prediction, "lm_head", hostile)))
    assert r"[red]x[/]\x1b[2J\x07" in lines
    assert "\x1b" not in lines
