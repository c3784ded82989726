"""`make demo`: rewrites, publishes, serves, asks and times the shipped ViTBN."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vitbn_packages  # noqa: F401  a missing package is one line
from serving.local_server import running_server


def step(number: int, title: str, *command: str) -> None:
    """Prints and runs a command of Python; exits with its code if it fails."""
    print(f"\n[{number}/4] {title}\n      $ python {' '.join(command)}", flush=True)
    if code := subprocess.run([sys.executable, *command]).returncode:
        sys.exit(code)


def main() -> None:
    step(
        1, "Rewrite the ViTBN trained on MNIST, export, prove and publish it", "export/to_onnx.py", "--rewrites", "all"
    )
    print("\n[2/4] Start the server\n      $ vitbn serve --supervised --model-repository triton_repo", flush=True)
    with running_server(Path("triton_repo"), supervised=True) as server:
        print(f"      ready on {server.http_url} (HTTP) and {server.grpc_url} (gRPC)")
        step(3, "Ask it", "clients/infer.py", "digit.png", "--model", "vitbn", "--top", "3", "--url", server.http_url)
    print("      server stopped")
    step(
        4,
        "Time one call with 512 images against PyTorch",
        *("benchmarks/latency.py", "--batch", "512", "--model", "vitbn", "--seconds", "10"),
    )
    print("\nDone. triton_repo/ holds the model. Serve it:")
    print("  source .venv/bin/activate\n  tritonserver --model-repository triton_repo")


if __name__ == "__main__":
    main()
