"""`make demo`: trains a small ViTBN on real digits, folds and publishes it, serves it and asks it about digit.png.

Each step is the command that its line shows; what differs from a user's is that the server is on free ports and is
stopped at the end. The model repository, triton_repo/, stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from serving.running import running_server

CHECKPOINT = "checkpoints/demo.safetensors"


def step(number: int, title: str, *command: str) -> None:
    """Prints what comes and runs it; ends the demonstration where it fails."""
    print(f"\n[{number}/5] {title}\n      $ python {' '.join(command)}", flush=True)
    if code := subprocess.run([sys.executable, *command]).returncode:
        sys.exit(code)


def main() -> None:
    """Runs the five steps from the repository's root."""
    step(
        1,
        "Train a ViTBN of depth 2 on scikit-learn's 1,797 handwritten digits",
        *("models/train.py", "--model", "vitbn", "--depth", "2", "--epochs", "25", "--output", CHECKPOINT),
    )
    step(
        2,
        "Fold its BatchNorms, export, prove and publish",
        *("export/to_onnx.py", "--fuse-bn", "--checkpoint", CHECKPOINT),
    )
    print("\n[3/5] Start the server\n      $ tritonserver --model-repository triton_repo", flush=True)
    with running_server(Path("triton_repo")) as server:
        print(f"      ready on {server.http_url} (HTTP) and {server.grpc_url} (gRPC)")
        step(4, "Ask it", "clients/infer.py", "digit.png", "--model", "vitbn", "--top", "3", "--url", server.http_url)
    print("      server stopped")
    step(
        5,
        "Time one call with 512 images against unfolded PyTorch",
        *("benchmarks/latency.py", "--batch", "512", "--models", "vitbn", "--depth", "2", "--seconds", "10"),
    )
    print("\nDone. triton_repo/ holds the model; serve it: tritonserver --model-repository triton_repo")


if __name__ == "__main__":
    main()
