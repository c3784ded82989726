"""Options that several benchmark commands share, and the option `--preset`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from benchmarks.measure.measured_network import Network
from benchmarks.measure.result_file import PROGRAM
from common.files import check_writable
from common.finite_range import FiniteRange
from common.given_path import GivenPath
from models.catalog import SHIPPED, NameChoice
from models.data import DATA_DIR_HELP, DIGIT_SETS, DataError, Dataset, load_dataset
from models.networks.config import MODEL_NAMES, ModelConfig

Command = TypeVar("Command", bound=Callable[..., object])
T = TypeVar("T")


class WithPresets(click.Command):
    """A command with the option `--preset NAME`, which replaces the command or its defaults.

    With benchmarks/presets/NAME.py, the other arguments go to that file's command NAME. Without the file, this command
    runs with the preset's defaults.
    """

    presets: Mapping[str, Mapping[str, Any] | None]
    """Name -> parameter -> default; None for a preset with a command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--preset=") else [arg])]
        index = words.index("--preset") if "--preset" in words else len(words)
        name = next(iter(words[index + 1 :]), "")
        if name not in self.presets:
            return super().make_context(info_name, args, parent, **extra)
        others = words[:index] + words[index + 2 :]
        command, defaults = self.preset(name), self.presets[name]
        make = super().make_context if command is self else command.make_context
        context = make(f"{info_name} --preset {name}", others, parent, default_map=defaults, **extra)
        context.meta[PROGRAM] = f"python benchmarks/{self.name}.py --preset {name}"
        return context

    def preset(self, name: str) -> click.Command:
        """The command that the preset `name` runs."""
        command = self if self.presets[name] else getattr(import_module(f"benchmarks.presets.{name}"), name)
        return cast("click.Command", command)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def presets(*names: str, **defaults: Mapping[str, Any]) -> Callable[[WithPresets], WithPresets]:
    """Adds `--preset` to a command.

    `names`: presets with a command in benchmarks/presets/. `defaults`: name of another preset -> parameter -> default.
    """

    def decorate(command: WithPresets) -> WithPresets:
        command.presets = {**defaults, **dict.fromkeys(names)}
        text, choice = "Measure this instead: --preset NAME --help.", click.Choice([*command.presets])
        command.params.insert(0, click.Option(["--preset"], type=choice, expose_value=False, help=text))
        return command

    return decorate


ALL = "all"


def chosen(names: Sequence[T], allowed: Iterable[T]) -> tuple[T, ...]:
    """The names without repeats, in the user's order; all `allowed` names if `all` is among them."""
    return tuple(allowed) if ALL in names else tuple(dict.fromkeys(names))


def names_option(option: str, name: str, allowed: Iterable[str], **more: Any) -> Callable[[Command], Command]:
    """A repeatable option that takes `all` or one of the `allowed` names. The help shows NAME: the list is long."""
    return click.option(option, name, type=NameChoice([*allowed, ALL]), multiple=True, metavar="NAME", **more)


def repeatable_option(
    option: str, name: str, kind: click.ParamType[Any], *default: Any, **more: Any
) -> Callable[[Command], Command]:
    return click.option(option, name, type=kind, multiple=True, default=default or None, show_default=True, **more)


class Result(GivenPath):
    """The path of a result. A path that cannot be written is refused before the measurement.

    Missing folders are made when the result is written.
    """

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        try:
            if path.exists() and not path.is_file():
                self.fail(f"{path}: expected a file or nothing, found something else", param, ctx)
            check_writable(path.parent)
            return path
        except OSError as error:
            self.fail(f"{path}: expected a place to write to, found {error.strerror}", param, ctx)


json_option = click.option("--json", "json_path", type=Result(), help="Write every sample and the environment.")
device_option = click.option(
    "--device", "wanted", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True
)
"""`auto` is a GPU if the machine has a GPU."""


def seconds_option(default: float, help_text: str) -> Callable[[Command], Command]:
    return click.option("--seconds", type=FiniteRange(1), default=default, show_default=True, help=help_text)


def checkpoint_options(command: Command) -> Command:
    """Adds the options whose values `user_networks` takes."""
    checkpoint = click.option(
        "--checkpoint",
        "checkpoints",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="Measure this checkpoint of yours; repeatable.",
    )
    dataset = click.option(
        "--dataset",
        type=GivenPath(path_type=str),
        help="A name or a folder.  [default: the data of the network's training]",
    )
    folder = click.option("--data-dir", type=GivenPath(path_type=Path), help=DATA_DIR_HELP)
    return checkpoint(dataset(folder(command)))


def user_networks(paths: Sequence[Path], dataset: str | None, data_dir: Path | None) -> list[Network]:
    """The networks of the user's checkpoints. Raises UsageError if two networks would have one name in results."""
    networks = [Network(path.stem, path, True, dataset, data_dir) for path in paths]
    names = {*MODEL_NAMES, *SHIPPED}
    for network in networks:
        if network.name in names:
            problem = "expected a name that no other network has; rename the file"
            raise click.UsageError(f"--checkpoint {network.weights}: {problem}")
        names.add(network.name)
    return networks


def models_to_measure(models: Sequence[str], checkpoints: Sequence[object]) -> tuple[str, ...]:
    """The value of `--model`, but no default models beside the user's checkpoints."""
    is_default = click.get_current_context().get_parameter_source("models") is ParameterSource.DEFAULT
    return () if is_default and checkpoints else tuple(models)


def dataset_options(command: Command) -> Command:
    """Adds `--dataset` and `--data-dir` for a data set of digits."""
    folder = click.option(
        "--data-dir", type=GivenPath(path_type=Path), help="Folder of idx files, else $MNIST_DIR or $EMNIST_DIR."
    )
    name = click.option(
        "--dataset",
        type=click.Choice(DIGIT_SETS),
        default="mnist",
        show_default=True,
        help="Data set of the test images.",
    )
    return name(folder(command))


def digits(dataset: str, data_dir: Path | None) -> Dataset:
    """The data set `dataset`. Raises DataError if it is missing or its images do not fit the shipped networks."""
    data = load_dataset(dataset, data_dir)
    expected, found = ("x".join(map(str, shape)) for shape in (ModelConfig().input_shape, data.test_images.shape[1:]))
    if found != expected:
        raise DataError(f"{dataset}: expected images of {expected}, found {found}")
    return data
