import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest.foreign_contestants import OPENVINO_OURS, OURS
from benchmarks.contest.rewritten import ALL, BEST, CONTESTANTS, EAGER, ONE_CALL, PLAIN

Row = dict[str, Any]

ENVIRONMENT = {
    "cpu": "A CPU",
    "cores": 2,
    "threads": 2,
    "device": "cpu",
    "load_1min": 0.1,
    "system": "Linux",
    "python": "3.11",
    "packages": {"torch": "2.13.0", "onnxruntime": "1.31.1"},
    "commit": "abc1234",
}


def samples_ns(median_ms: float, seed: int = 0, rounds: int = 9) -> list[int]:
    spread = np.random.default_rng(seed).uniform(-0.02, 0.02, rounds)
    return [round(1e6 * median_ms * (1 + one)) for one in spread - np.median(spread)]


def timed(median_ms: float, **fields: object) -> Row:
    percentiles = {f"p{percent}_ms": median_ms for percent in (50, 90, 99)}
    return fields | percentiles | {"images_per_s": 1e6 / median_ms, "samples_ns": samples_ns(median_ms)}


def rewrites(faster: float = 1.0) -> Row:
    """ms: eager 400, all rewrites 20 / `faster`, others 200; a quarter at depth 1, twice that for other models."""
    results = []
    for depth, factor in ((6, 1.0), (1, 0.25)):
        rows = [timed(40.0, name="2048^3 in ONNX Runtime", flops=2 * 2048**3, gflops_per_s=430.0)]
        for model, contestants in CONTESTANTS.items():
            for who in contestants:
                ms = factor * {EAGER: 400.0, ALL: 20.0 / faster}.get(who, 200.0) * (1 if model == "vitbn" else 2)
                ratios = {
                    other: {"ratio": other_ms / ms, "low": 0.9 * other_ms / ms, "high": 1.1 * other_ms / ms}
                    for other, other_ms in ((EAGER, factor * 400.0), (PLAIN, factor * 200.0))
                }
                for kind in (ONE_CALL, BEST):
                    names = {"name": f"{model}, {who}, {kind}", "model": model, "contestant": who, "kind": kind}
                    work = {"macs": 8_600_000, "gflops_per_s": 8.6e7 / ms / 1e3, "way": "64 a call", "ratios": ratios}
                    rows.append(timed(ms, **names, **work))
        results.append({"depth": depth, "rows": rows})
    return {"benchmark": "rewrites", "images": 5000, "results": results}


def frontier() -> Row:
    networks = (
        ("vitbn-tiny", "vitbn", 1, 0.9873, 15.0),
        ("vit", "vit", 6, 0.9936, 500.0),
        ("cnn", "cnn", None, 0.9968, 400.0),
    )
    derived = [
        timed(ms, checkpoint=f"pretrained/{name}.safetensors", model=model, depth=depth, test_accuracy=accuracy)
        | {"macs": 10_000_000, "way": "64 a call", "images_per_s": 5_000_000 / ms}
        for name, model, depth, accuracy, ms in networks
    ]
    return {"study": "frontier-measured", "timing": "Medians.", "scope": {"reduced": ""}, "derived": derived}


def operators() -> Row:
    def row(operator: str, us: float, share: float, rate: float | None) -> Row:
        shapes = {"operator": operator, "shapes": "64x17x64 → 64x17x512"}
        return shapes | {"count": 6, "p50_us": us, "share": share, "gflops_per_s": rate}

    rows = [row("MatMul", 900.0, 0.9, 100.0), row("Softmax", 100.0, 0.1, None)]
    times = {"p50_ms": 1.1, "profiled_p50_ms": 1.2, "nodes_p50_ms": 1.0}
    graphs = [{"rewrites": name, "operators": rows, "groups": rows, **times} for name in ("plain", "all")]
    return {"benchmark": "operators", "model": "vitbn", "batch": 64, "calls": 100, "graphs": graphs}


def latency() -> Row:
    rows = [latency_row(ms, runtime) for runtime, ms in (("torch", 400.0), ("onnx-optimized", 20.0))]
    missing = [{"model": "vit", "runtime": "tensorrt", "precision": "fp32", "reason": "there is no GPU"}]
    limits = {"gemm_gflops_per_s": 430.0, "gemm_library": "ONNX Runtime", "copy_gb_per_s": 12.0}
    result = {"benchmark": "latency", "command": "python benchmarks/latency.py --batch 5000", "limits": limits}
    return result | {"caveat": None, "missing": missing, "rows": rows}


def latency_row(ms: float, runtime: str, **sizes: int) -> Row:
    names = {"model": "vitbn", "runtime": runtime, "label": f"label of {runtime}", "precision": "fp32"}
    shares = {"gemm_share": 0.5, "bandwidth_share": None, "peak_memory_mb": None, "macs": 16_870_000, "stable": True}
    ratio = {"ratio": 400.0 / ms, "low": 390.0 / ms, "high": 410.0 / ms}
    return timed(ms, **names, **shares, **{"depth": 6, "batch": 5000} | sizes) | {"ratio_to_torch": ratio}


def sweep() -> Row:
    batches = [latency_row(float(batch), "onnx-optimized", batch=batch) for batch in (1, 64)]
    depths = [latency_row(float(depth), "onnx-optimized", depth=depth) for depth in (1, 6)]
    axes = {"batch": batches, "depth": depths, "dim": []}
    return {"benchmark": "sweep", "command": "python benchmarks/latency.py --sweep", "axes": axes}


def engines() -> Row:
    names = (
        "ONNX Runtime, float32, 16 a call",
        "OpenVINO, float32, 16 a call",
        "2 requests together",
        "2 requests one by one",
    )
    return {
        "benchmark": "engines",
        "model": "vitbn",
        "rows": [timed(1.0 + i, name=name) for i, name in enumerate(names)],
    }


def accuracy() -> Row:
    row = {"model": "vitbn", "runtime": "PyTorch eager", "accuracy": 0.9948, "agreement": 1.0, "max_abs_error": 0.0}
    return {"benchmark": "accuracy", "dataset": "mnist", "images": 10_000, "rows": [row]}


def overhead() -> Row:
    rows = [
        timed(count * ms, transport=transport, images_a_call=count, added_ms=count * (ms - 1.0))
        for count in (10_000, 1)
        for transport, ms in (("in process", 1.0), ("gRPC", 2.0))
    ]
    return {"benchmark": "overhead", "model": "vitbn", "rows": rows}


def throughput(models: Sequence[str] = ("vitbn-tiny",)) -> Row:
    reached = {"protocol": "grpc", "shared_memory": False, "instances": 1, "threads": 0, "rate": None}
    times = {
        "p50_ms": 2.0,
        "p90_ms": 3.0,
        "p95_ms": 3.5,
        "p99_ms": 4.0,
        "server_queue_ms": 0.1,
        "server_compute_ms": 1.0,
    }
    rows = [
        {"model": model, **reached, **times, "batch": batch, "in_flight": in_flight, "images_per_s": speed}
        | {"in_process_images_per_s": 2 * speed, "samples": [{"images_per_s": speed, "p50_ms": 2.0}]}
        | {"in_process_samples": [{"images_per_s": 2 * speed}]}
        for model in models
        for batch, in_flight, speed in ((1, 1, 500.0), (64, 8, 4000.0))
    ]
    alike = {"model": models[0], "protocol": "grpc", "shared_memory": False, "instances": 1, "threads": 0, "batch": 64}
    point = alike | {
        "by": "in_flight",
        "rate": None,
        "in_flight": 8,
        "images_per_s": 4000.0,
        "p99_ms": 4.0,
        "beyond": True,
    }
    result = {
        "benchmark": "throughput",
        "command": "python benchmarks/throughput.py",
        "generator": "asyncio",
        "max_p99_ms": 100.0,
    }
    missing = [alike | {"in_flight": 512, "rate": None, "reason": "the queue is full"}]
    return result | {"rows": rows, "missing": missing, "saturation": [point]}


def foreign() -> Row:
    def time(contestant: str, ms: float, base: str | None, faster: float) -> Row:
        ratio = {"ratio": faster, "low": 0.95 * faster, "high": 1.05 * faster} if base else None
        return timed(ms, contestant=contestant, base=base, times_as_fast=ratio)

    rows = [time("plain", 9.0, None, 1), time(OURS, 5.0, "plain", 1.8), time(OPENVINO_OURS, 4.0, "OpenVINO", 1.5)]
    text = {"network": "bert", "title": "BERT", "macs": 58_700_000, "macs_after": {"read-rows": 29_350_000}}
    text |= {"norms": [25, 0], "times": [{"batch": batch, "rows": rows, "left_out": {}} for batch in (1, 8)]}
    missing = {"network": "levit", "title": "LeViT", "left_out": "timm is not installed"}
    return {"benchmark": "foreign", "rows": [text, missing]}


EVERY = (foreign, rewrites, frontier, operators, latency, sweep, engines, accuracy, overhead, throughput)


def write(path: Path, result: Row, **environment: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | {"environment": ENVIRONMENT | environment}))
    return path
