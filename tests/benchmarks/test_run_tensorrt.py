from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.measure.run_tensorrt import Execution
from models.networks.config import INPUT_NAME, OUTPUT_NAME

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
