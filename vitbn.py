"""The program `vitbn COMMAND`.

Importing this module also installs one-line errors: for a foreign package that hides ours, and for a missing extra.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import click

HERE = Path(__file__).resolve().parent
PACKAGES = ("models", "export", "serving", "clients", "benchmarks")

# Name -> module and help, so that `vitbn --help` imports no command.
COMMANDS = {
    "models": ("models.catalog", "List the shipped checkpoints."),
    "train": ("models.train", "Train a model."),
    "calibrate": ("models.calibrate", "Fit the temperature of checkpoints."),
    "tune": ("models.tune", "Search learning rate and batch size, or the geometry."),
    "study": ("models.study", "Carry out a published study."),
    "export": ("export.to_onnx", "Rewrite a checkpoint exactly and publish it."),
    "rewrite": ("export.rewrite", "Rewrite any ONNX transformer exactly."),
    "tensorrt": ("export.to_tensorrt", "Build and publish a TensorRT engine."),
    "repository": ("export.repository", "Operate a Triton model repository."),
    "serve": ("serving.serve", "Run tritonserver."),
    "proxy": ("serving.proxy.command", "Write Envoy's configuration for several servers."),
    "infer": ("clients.infer", "Ask the server what pictures show."),
    "bulk": ("clients.bulk.app", "Classify pictures without a server."),
    "probe": ("clients.probe", "Ask every served version a stored image."),
    "web": ("clients.web.app", "Serve a page to draw a digit on."),
    "latency": ("benchmarks.latency", "Time calls before and after the rewrites."),
    "conditions": ("benchmarks.conditions", "Measure the accuracy on pictures taken under other conditions."),
}

# Extra -> packages that it brings.
EXTRAS = {
    "base": ("onnx", "onnx_ir", "onnxruntime", "safetensors", "scipy", "sklearn", "tabulate", "torch"),
    "client": ("PIL", "tritonclient"),
    "serve": ("prometheus_client",),
    "train": ("kornia", "matplotlib"),
    "web": ("flask", "waitress"),
}


class LazyGroup(click.Group):
    """Imports commands on demand: a client machine lacks other commands' packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        if not isinstance(command := getattr(module, cmd_name, None), click.Command):
            raise ImportError(f"{module.__name__} has no command {cmd_name}", name=module.__name__)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])


@click.group(cls=LazyGroup)
def main() -> None:
    """Train a Vision Transformer with BatchNorm, rewrite it exactly, serve it on Triton, ask it, time it."""


def foreign_package(error: BaseException) -> str | None:
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    spec = find_spec(package) if package in PACKAGES else None
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if not places or Path(places[0]).resolve().parent == HERE:
        return None
    folder = Path(places[0]).parent
    return f"Error: expected the package {package} of {HERE}, found another in {folder}: remove it from PYTHONPATH"


def missing_package(error: BaseException) -> str | None:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    for extra in (extra for extra, packages in EXTRAS.items() if name in packages):
        return f"Error: expected {name}, found none; install it: pip install -c constraints.txt -e '.[{extra}]'"
    return None


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    line = foreign_package(error) or missing_package(error)
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(line, file=sys.stderr)


sys.excepthook = _excepthook

if __name__ == "__main__":
    main()
