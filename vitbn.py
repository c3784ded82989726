"""The program `vitbn COMMAND`.

Importing this module also installs one-line errors: for a foreign package that hides ours, and for a missing extra.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import click

HERE = Path(__file__).resolve().parent
PACKAGES = ("models", "export", "serving", "clients", "benchmarks")


class Entry(NamedTuple):
    module: str
    help: str
    example: str


# Group -> name -> command, so that `vitbn --help` imports no command.
GROUPS: dict[str, dict[str, Entry]] = {
    "Prepare": {
        "models": Entry("models.catalog", "List the shipped checkpoints.", ""),
        "train": Entry("models.train", "Train a network.", "--model vitbn --dataset pictures/"),
        "calibrate": Entry(
            "models.calibrate", "Fit the temperature of checkpoints.", "checkpoints/vitbn-mnist.safetensors"
        ),
        "tune": Entry(
            "models.tune", "Search learning rate and batch size, or the geometry.", "--model vitbn --dataset mnist"
        ),
        "study": Entry(
            "models.study", "Repeat a study of the published claims.", "learning-rates --quick --output DIR"
        ),
    },
    "Export": {
        "export": Entry("export.to_onnx", "Rewrite a checkpoint and publish it.", "--model vitbn --fuse-bn"),
        "rewrite": Entry("export.rewrite", "Rewrite any ONNX transformer.", "IN.onnx -o OUT.onnx --read 'logits[:,0]'"),
        "tensorrt": Entry(
            "export.to_tensorrt", "Build and publish a TensorRT engine.", "--model vitbn --precision fp16"
        ),
        "repository": Entry("export.repository", "Operate a Triton model repository.", "list"),
    },
    "Serve": {
        "serve": Entry("serving.serve", "Run tritonserver.", "--supervised --model-repository triton_repo"),
        "proxy": Entry(
            "serving.proxy.command",
            "Write Envoy's configuration for several servers.",
            "10.0.0.1 10.0.0.2 --output proxy",
        ),
    },
    "Ask": {
        "infer": Entry("clients.infer", "Ask the server what pictures show.", "digit.png --top 3"),
        "bulk": Entry(
            "clients.bulk.app",
            "Classify pictures without a server.",
            "pictures/ --output answers --model triton_repo/vitbn",
        ),
        "probe": Entry("clients.probe", "Ask every served version a stored image.", "--url 127.0.0.1:8000"),
        "web": Entry("clients.web.app", "Serve a page to draw a digit on.", "--port 8080"),
    },
    "Measure": {
        "bench": Entry(__name__, "Measure speed, accuracy, load and faults.", "latency --batch 5000"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

# The programs of benchmarks/.
BENCHMARKS = {
    "latency": Entry("benchmarks.latency", "Time calls before and after the rewrites.", "--batch 5000"),
    "throughput": Entry("benchmarks.throughput", "Load a server.", "--batch 1 --rate 1000"),
    "accuracy": Entry("benchmarks.accuracy", "Compare the accuracy of runtimes and precisions.", "--model vitbn"),
    "faults": Entry("benchmarks.faults", "Break a server, count what its clients see.", "--scenario stub-killed"),
    "foreign": Entry("benchmarks.foreign", "Time rewritten third-party ONNX networks.", "--network bert-2x128"),
    "report": Entry("benchmarks.report", "Write tables of results, compare two results.", "compare OLD.json NEW.json"),
}

# Extra -> packages that it brings.
EXTRAS = {
    "base": ("jsonschema", "safetensors", "scipy", "sklearn", "tabulate", "torch"),
    "rewrite": ("onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime"),
    "client": ("PIL", "tritonclient"),
    "serve": ("prometheus_client",),
    "train": ("kornia", "matplotlib"),
    "web": ("flask", "waitress"),
}


class LazyGroup(click.Group):
    """Imports commands on demand: a client machine lacks other commands' packages."""

    def __init__(self, groups: Mapping[str, Mapping[str, Entry]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.groups = groups
        self.entries = {name: entry for group in groups.values() for name, entry in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (entry := self.entries.get(cmd_name)) is None:
            return None
        module = import_module(entry.module)
        if not isinstance(command := getattr(module, cmd_name, None), click.Command):
            raise ImportError(f"{module.__name__} has no command {cmd_name}", name=module.__name__)
        words = ["vitbn", *([] if self is main else [str(self.name)]), cmd_name, entry.example]
        command.epilog = f"Example: {' '.join(words)}".rstrip()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows only imported commands
            raise click.NoSuchCommand(error.command_name, possibilities=self.entries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in self.groups.items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:10}", entry.help) for name, entry in commands.items()])


@click.group(cls=LazyGroup, groups=GROUPS)
@click.version_option(package_name="vitbn", prog_name="vitbn", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Train a vision transformer with BatchNorm, rewrite it exactly, serve it on Triton, ask it, measure it."""
    context.obj = images_per_s


def images_per_s(checkpoint: Path) -> float:
    """What `vitbn tune` measures speed with: models/ imports no benchmark."""
    from benchmarks.measure.speeds import images_per_s
    from export.errors import ExportError

    try:
        return images_per_s(checkpoint)
    except ExportError as error:
        raise click.ClickException(f"{checkpoint}: expected its measured speed, found {error}") from error


@click.group(cls=LazyGroup, groups={"Commands": BENCHMARKS})
def bench() -> None:
    """Measure: vitbn bench NAME is python benchmarks/NAME.py."""


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
