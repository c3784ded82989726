"""The program `vitbn COMMAND`: the table of its commands, each imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

import vitbn_packages  # noqa: F401  # installs the one-line errors


class Entry(NamedTuple):
    """A command: the module that defines it, its line in the help, and arguments for an example."""

    module: str
    help: str
    example: str


# Group -> name -> command. With this table `vitbn --help` imports no command.
GROUPS: dict[str, dict[str, Entry]] = {
    "Prepare": {
        "models": Entry("models.catalog", "List the shipped checkpoints.", ""),
        "train": Entry("models.train", "Train a network.", "--model vitbn --dataset pictures/"),
        "calibrate": Entry(
            "models.calibrate", "Fit the temperature of checkpoints.", "checkpoints/vitbn-mnist.safetensors"
        ),
        "adapt": Entry(
            "models.adapt",
            "Give a checkpoint the BatchNorm statistics of new pictures.",
            "models/pretrained/vitbn.safetensors scans/",
        ),
        "tune": Entry(
            "benchmarks.studies.tune",
            "Search learning rate and batch size, or the geometry.",
            "--model vitbn --dataset mnist",
        ),
        "study": Entry(
            "benchmarks.studies.study", "Repeat a study of the published claims.", "learning-rates --quick --output DIR"
        ),
    },
    "Export": {
        "export": Entry("export.to_onnx", "Rewrite a checkpoint and publish it.", "--model vitbn --fuse-bn"),
        "rewrite": Entry("export.rewrite", "Rewrite any ONNX transformer.", "IN.onnx -o OUT.onnx --read 'logits[:,0]'"),
        "compare": Entry("export.compare", "Compare the answers and speed of two ONNX files.", "A.onnx B.onnx"),
        "tensorrt": Entry(
            "export.to_tensorrt", "Build and publish a TensorRT engine.", "--model vitbn --precision fp16"
        ),
        "repository": Entry("export.repository", "Operate a Triton model repository.", "list"),
    },
    "Serve": {
        "serve": Entry("serving.serve", "Run tritonserver.", "--supervised --model-repository triton_repo"),
        "proxy": Entry(
            "serving.proxy.vitbn_proxy_command",
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
    "steady": Entry("benchmarks.steady", "Watch whether this machine gives the same times again.", "--seconds 20"),
    "report": Entry("benchmarks.report", "Write tables of results, compare two results.", "compare OLD.json NEW.json"),
}


class LazyGroup(click.Group):
    """A click group that imports a command when it is called: a client machine lacks other commands' packages."""

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
        group = [] if self is main else [str(self.name)]
        command.epilog = f"Example: {' '.join(['vitbn', *group, cmd_name, entry.example])}".rstrip()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click itself suggests only imported commands
            raise click.NoSuchCommand(error.command_name, possibilities=self.entries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in self.groups.items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:10}", entry.help) for name, entry in commands.items()])


@click.group(cls=LazyGroup, groups=GROUPS)
@click.version_option(package_name="vitbn", prog_name="vitbn", message="%(prog)s %(version)s")
def main() -> None:
    """Train a vision transformer with BatchNorm, rewrite it exactly, serve it on Triton, ask it, measure it."""


@click.group(cls=LazyGroup, groups={"Commands": BENCHMARKS})
def bench() -> None:
    """Measure: vitbn bench NAME is python benchmarks/NAME.py."""


if __name__ == "__main__":
    main()
