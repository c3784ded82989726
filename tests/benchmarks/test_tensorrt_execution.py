from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.measure.floors import Work, floor
from benchmarks.measure.networks import reference
from benchmarks.measure.tensorrt_execution import Execution
from export.graph import Form
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig
from models.macs import macs_per_image

STREAM = SimpleNamespace(cuda_stream=7, synchronize=lambda: None)
SIZES = (2, 5)


class Context:
    """Every logit is the sum of all pixels."""

    def __init__(self, refuses: str) -> None:
        self.refuses, self.calls, self.shape = refuses, [], ()
        self.addresses: dict[str, int] = {}

    def _note(self, name: str, *arguments: object) -> bool:
        self.calls.append((name, *arguments))
        return name != self.refuses

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        return self._note("profile", profile, stream)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return self._note("shape", name, shape)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return self._note("address", name)

    def execute_async_v3(self, stream: int) -> bool:
        import ctypes

        images = np.ctypeslib.as_array(
            (ctypes.c_uint8 * int(np.prod(self.shape))).from_address(self.addresses[INPUT_NAME])
        )
        logits = np.ctypeslib.as_array((ctypes.c_float * (3 * self.shape[0])).from_address(self.addresses[OUTPUT_NAME]))
        logits.reshape(-1, 3)[:] = images.reshape(self.shape[0], -1).sum(1, dtype=np.float32)[:, None]
        return self._note("execute", stream)


class Engine:
    kind = Context

    def __init__(self, refuses: str = "", memory: bool = True) -> None:
        self.refuses, self.memory, self.contexts = refuses, memory, []

    def create_execution_context(self) -> Context | None:
        self.contexts.append(self.kind(self.refuses))
        return self.contexts[-1] if self.memory else None

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1, 3)


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 9, (count, 1, 2, 2), np.uint8))


def test_a_call_sets_an_address_and_enqueues_and_nothing_else() -> None:
    engine = Engine()
    run = Execution(engine, SIZES.index, STREAM)
    for count, seed in ((5, 0), (5, 1), (2, 2)):
        given = images(count, seed)
        assert torch.equal(run(given), given.flatten(1).float().sum(1)[:, None].expand(-1, 3))
    five, two = engine.contexts
    assert five.calls == [
        *[("profile", 1, 7), ("shape", INPUT_NAME, (5, 1, 2, 2)), ("address", OUTPUT_NAME)],
        *[("address", INPUT_NAME), ("execute", 7)] * 2,
    ]
    assert two.calls[0] == ("profile", 0, 7)
    with pytest.raises(ValueError, match="not in tuple"):
        run(images(3))


@pytest.mark.parametrize("step", ["profile", "shape", "execute"])
def test_what_tensorrt_refuses_is_an_error(step: str) -> None:
    with pytest.raises(RuntimeError, match=r"TensorRT: expected it to take .*found a refusal"):
        Execution(Engine(step), SIZES.index, STREAM)(images(2))
    with pytest.raises(RuntimeError, match="expected memory for an execution context"):
        Execution(Engine(memory=False), SIZES.index, STREAM)(images(2))


class Graph:
    """Repeats its capture's calls; `refuses` as CUDA would."""

    capturing: "Graph | None" = None
    refuses = ""

    def __init__(self) -> None:
        self.kernels: list[Callable[[], object]] = []

    def capture_begin(self, capture_error_mode: str) -> None:
        Graph.capturing = self

    def capture_end(self) -> None:
        Graph.capturing = None
        if self.refuses == "cuda":
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture\nmore")

    def replay(self) -> None:
        for kernel in self.kernels:
            kernel()


class Captured(Context):
    def execute_async_v3(self, stream: int) -> bool:
        if not Graph.capturing:
            return super().execute_async_v3(stream)
        Graph.capturing.kernels.append(lambda: super(Captured, self).execute_async_v3(stream))
        return Graph.refuses != "tensorrt"


@pytest.fixture
def cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(Engine, "kind", Captured)


@pytest.mark.usefixtures("cuda_graphs")
def test_a_cuda_graph_enqueues_once_before_its_capture_and_never_after() -> None:
    engine = Engine()
    run = Execution(engine, SIZES.index, STREAM, graph=True)
    for seed in range(3):
        given = images(5, seed)
        assert torch.equal(run(given), given.flatten(1).float().sum(1)[:, None].expand(-1, 3))
    (context,) = engine.contexts
    assert context.calls.count(("address", INPUT_NAME)) == 2, "before and in the capture"
    assert run.fallback is None


@pytest.mark.usefixtures("cuda_graphs")
@pytest.mark.parametrize(
    ("refuses", "reason"),
    [
        ("cuda", "RuntimeError: CUDA error: operation failed due to a previous error during capture"),
        ("tensorrt", "RuntimeError: TensorRT: expected it to take to enqueue the engine, found a refusal"),
    ],
)
def test_where_no_graph_can_be_captured_the_engine_is_enqueued_and_the_reason_kept(
    refuses: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graph, "refuses", refuses)
    run = Execution(Engine(), SIZES.index, STREAM, graph=True)
    for seed in range(2):
        given = images(5, seed)
        assert torch.equal(run(given), given.flatten(1).float().sum(1)[:, None].expand(-1, 3))
    assert str(run.fallback).startswith(f"no CUDA graph for 5 images: {reason}")
    assert Graph.capturing is None


def test_the_floor_counts_every_layer_once() -> None:
    config = ModelConfig(model="vitbn", depth=1)
    tokens, dim, inner, hidden = config.num_patches + 1, config.dim, config.heads * config.dim_head, config.mlp_dim
    pixels = int(np.prod(config.input_shape))
    plain = pixels + config.num_patches * dim + dim + config.num_classes  # embedding, head
    plain += tokens * (dim + 3 * inner + inner + dim) + tokens * 4 * inner + 2 * tokens * (dim + hidden)
    of = reference(config)
    # Embedding, qkv, attention, output, two of the FFN, head.
    assert of.graph(Form("none"))[1] == Work(macs_per_image(of.network.model), plain, 7)
    assert of.graph(Form("all", fuse_attention=True))[1].values < plain / 2


@pytest.mark.parametrize(
    ("of", "batch", "precision", "graph", "expected_ms", "by"),
    [
        (Work(10**6, 10**3, 0), 500, "fp32", False, 1.0, "operations"),  # 1 GFLOP
        (Work(10**6, 10**6, 0), 500, "fp16", False, 1.0, "bytes"),  # 1 GB
        (Work(10**6, 10**3, 500), 1, "fp32", False, 1.0, "launches"),
        (Work(10**6, 10**3, 500), 1, "fp32", True, 0.25, "launches"),
    ],
)
def test_the_highest_floor_counts(
    of: Work, batch: int, precision: str, graph: bool, expected_ms: float, by: str
) -> None:
    limits: dict[str, Any] = {"gemm_gflops_per_s_by_precision": {"fp32": 1e3, "fp16": 1e9}, "copy_gb_per_s": 1e3}
    limits |= {"launch_us": 2.0, "graph_node_us": 0.5}
    found_ms, name = floor(of, batch, precision, graph, limits)
    assert (found_ms, name) == (pytest.approx(expected_ms), by)


@pytest.mark.slow
def test_the_floor_of_5000_images_on_an_h200() -> None:
    """By hand, at 4,000 GB/s; the products alone take 0.11 ms."""
    of = reference(ModelConfig(model="vitbn", depth=6))
    limits: dict[str, Any] = {"gemm_gflops_per_s_by_precision": {"fp32": 5e4, "fp16": 8e5}, "copy_gb_per_s": 4e3}
    for rewrites, expected_ms in (("all", 0.57), ("none", 1.14)):
        moved = replace(of.graph(Form(rewrites, fuse_attention=True))[1], macs=1)
        assert floor(moved, 5000, "fp16", False, limits) == (pytest.approx(expected_ms, rel=0.05), "bytes")
    products = replace(of.graph(Form("all"))[1], values=1)
    assert floor(products, 5000, "fp16", False, limits) == (pytest.approx(0.11, rel=0.05), "operations")
