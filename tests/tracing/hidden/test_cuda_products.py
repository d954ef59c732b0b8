"""What matrix products take on a GPU: workspaces by thread, card and version, and copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cuda_calls import A100, B200, BF16, F32, H100, RTX_4090, inside, of

from memfit.allocator.version import TorchVersion
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.products import cublas_workspace_bytes

SMALL, BIG = 8_519_680, 33_554_432


@pytest.mark.parametrize(
    ("kernels", "version", "num_bytes"),
    [
        (A100, (2, 6), SMALL),
        (RTX_4090, (2, 14), SMALL),
        (H100, (2, 6), BIG),
        (H100, (2, 14), BIG),
        (B200, (2, 11), SMALL),
        (B200, (2, 12), BIG),
        (replace(B200, capability=(12, 0)), (2, 11), SMALL),
        (replace(B200, capability=(12, 0)), (2, 12), BIG),
        (replace(B200, capability=(7, 5)), (2, 14), SMALL),
    ],
)
def test_the_cublas_workspace_hangs_on_card_and_version(
    kernels: Kernels, version: tuple[int, int], num_bytes: int
) -> None:
    assert cublas_workspace_bytes(replace(kernels, version=TorchVersion(*version))) == num_bytes


@pytest.mark.parametrize(
    ("config", "num_bytes"),
    [
        (":4096:8", 32 << 20),
        (":16:8", 128 << 10),
        (":4096:2:16:8", SMALL),
        (":0:0", 0),
        ("x", SMALL),
    ],
)
def test_the_environment_decides_on_the_workspace_as_pytorch_parses_it(
    config: str, num_bytes: int
) -> None:
    assert cublas_workspace_bytes(replace(A100, cublas_workspace_config=config)) == num_bytes


def test_a_linear_layer_with_bias_takes_what_was_recorded_on_torch_2_5() -> None:
    """The public recording of ``nn.Linear(10000, 50000)``, of a Hopper card."""
    old = replace(H100, version=TorchVersion(2, 6))
    operands = of(50_000), of(5_000, 10_000), of(10_000, 50_000, stride=(1, 10_000))
    assert inside(old, "addmm.out", *operands, out=of(5_000, 50_000)) == [
        ("take", 0, 1_048_576),
        ("keep", "cuBLAS workspace", 33_554_432),
        ("give", 0),
    ]


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ((2, 9), [("cuBLAS workspace", SMALL), ("cuBLASLt workspace", 1_048_576)]),
        ((2, 10), [("cuBLAS workspace", SMALL), ("cuBLASLt workspace", 1_048_576)]),
        ((2, 11), [("cuBLAS workspace", SMALL)]),
        ((2, 14), [("cuBLAS workspace", SMALL)]),
    ],
)
def test_cublaslt_keeps_a_workspace_of_its_own_and_then_shares(
    version: tuple[int, int], kept: list[tuple[str, int]]
) -> None:
    kernels = replace(RTX_4090, version=TorchVersion(*version))
    assert inside(kernels, "addmm.out", of(8), of(4, 4), of(4, 8), out=of(4, 8)) == [
        ("keep", *block) for block in kept
    ]


@pytest.mark.parametrize(
    "operands",
    [
        (of(4, 8), of(4, 4), of(4, 8)),  # a bias of two dimensions
        (of(8, stride=(2,)), of(4, 4), of(4, 8)),
        (of(1), of(4, 4), of(4, 1)),  # one column
    ],
)
def test_a_bias_that_cublaslt_cannot_add_goes_by_cublas(operands: tuple[object, ...]) -> None:
    assert inside(A100, "addmm.out", *operands) == [("keep", "cuBLAS workspace", SMALL)]


def test_a_product_with_beta_other_than_one_goes_by_cublas() -> None:
    assert inside(A100, "addmm.out", of(8), of(4, 4), of(4, 8), beta=0.5) == [
        ("keep", "cuBLAS workspace", SMALL)
    ]


def test_the_workspace_comes_after_the_output() -> None:
    assert inside(A100, "mm", of(4, 4), of(4, 8), num_outputs=1) == [
        ("output", 0),
        ("keep", "cuBLAS workspace", SMALL),
    ]


def test_an_expanded_operand_is_copied_before_the_workspace_as_recorded() -> None:
    """The gradient of a sum in the public recording of plain attention (torch 2.6)."""
    weights = of(8, 4096, 4096, stride=(16_777_216, 1, 4096))
    assert inside(A100, "bmm.out", weights, of(8, 4096, 16, stride=(0, 0, 0))) == [
        ("take", 0, 2_097_152),
        ("keep", "cuBLAS workspace", SMALL),
        ("give", 0),
    ]


@pytest.mark.parametrize(
    ("matrix", "is_copied"),
    [
        (of(6, 4), False),
        (of(6, 4, stride=(1, 6)), False),
        (of(6, 4, stride=(8, 1)), False),
        (of(6, 4, stride=(8, 2)), True),
        (of(6, 4, stride=(2, 1)), True),
        (of(6, 4, stride=(0, 1)), True),
    ],
)
def test_a_matrix_is_copied_unless_rows_or_columns_lie_behind_one_another(
    matrix: object, is_copied: bool
) -> None:
    events = inside(A100, "mm.out", matrix, of(4, 4)) or []
    assert [event[0] for event in events] == (["take", "keep", "give"] if is_copied else ["keep"])


def test_a_product_of_nothing_takes_nothing() -> None:
    assert inside(A100, "mm.out", of(0, 4), of(4, 4)) is None


def test_half_precision_takes_the_same_workspace() -> None:
    for dtype in (F32, BF16):
        assert inside(H100, "mm.out", of(4, 4, dtype=dtype), of(4, 4, dtype=dtype)) == [
            ("keep", "cuBLAS workspace", BIG)
        ]


def test_scaled_products_go_by_cublaslt() -> None:
    old = replace(H100, version=TorchVersion(2, 8))
    assert inside(old, "_scaled_mm", of(16, 16), of(16, 16), num_outputs=1) == [
        ("output", 0),
        ("take", 0, 1_048_576),
        ("keep", "cuBLAS workspace", BIG),
        ("give", 0),
    ]
