from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from models.catalog import NameChoice
from models.data import DIGIT_SETS

Command = TypeVar("Command", bound=Callable[..., object])
T = TypeVar("T")


PRESET_OF = "benchmarks.preset_of"
"""Key of a context's `meta`: the name of the command whose preset runs."""


class WithPresets(click.Command):
    """`--preset NAME` passes the other arguments to the command NAME of benchmarks/presets/NAME.py."""

    presets: tuple[str, ...] = ()

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--preset=") else [arg])]
        place = words.index("--preset") if "--preset" in words else len(words)
        name = next(iter(words[place + 1 :]), "")
        if name not in self.presets:
            return super().make_context(info_name, args, parent, **extra)
        own = words[:place] + words[place + 2 :]
        context = preset(name).make_context(f"{info_name} --preset {name}", own, parent, **extra)
        context.meta[PRESET_OF] = self.name
        return context

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def preset(name: str) -> click.Command:
    command: click.Command = getattr(import_module(f"benchmarks.presets.{name}"), name)
    return command


def presets(*names: str) -> Callable[[WithPresets], WithPresets]:
    def decorate(command: WithPresets) -> WithPresets:
        command.presets = names
        what = "Measure this instead, with its own options: --preset NAME --help."
        command.params.insert(0, click.Option(["--preset"], type=click.Choice(names), expose_value=False, help=what))
        return command

    return decorate


ALL = "all"
PRECISION_HELP = "Repeatable.  [CPU: fp32; GPU: fp32, tf32, fp16]"


def chosen(names: Sequence[T], every: Iterable[T]) -> tuple[T, ...]:
    """Each once, in the order asked for; `all` means `every`."""
    return tuple(every) if ALL in names else tuple(dict.fromkeys(names))


def several(option: str, name: str, allowed: Iterable[str], **more: Any) -> Callable[[Command], Command]:
    """A repeatable option with a long list of names, which the help leaves out."""
    decorate: Callable[[Command], Command] = click.option(
        option, name, type=NameChoice([*allowed, ALL]), multiple=True, metavar="NAME", **more
    )
    return decorate


def repeated(
    option: str, name: str, kind: click.ParamType[Any], *default: Any, **more: Any
) -> Callable[[Command], Command]:
    """A repeatable option."""
    decorate: Callable[[Command], Command] = click.option(
        option, name, type=kind, multiple=True, default=default or None, show_default=True, **more
    )
    return decorate


class FiniteRange(click.FloatRange):
    """click's FloatRange accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"expected a finite number, found {value}", param, ctx)
        return number


class Result(click.Path):
    """Checked before the measurement; missing folders are made later."""

    def __init__(self, folder: bool = False) -> None:
        super().__init__(file_okay=not folder, dir_okay=folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if path.exists() and not (path.is_dir() or path.is_file()):
            self.fail(f"{path}: expected a file or nothing, found something else", param, ctx)
        folder = path if self.dir_okay else path.parent
        existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                return path
        except OSError as error:
            self.fail(f"{path}: expected a place to write to, found {error.strerror}", param, ctx)


def json_option(command: Command) -> Command:
    what = "Write every sample and the environment."
    option: Callable[[Command], Command] = click.option("--json", "json_path", type=Result(), help=what)
    return option(command)


def seconds_option(default: float, what: str) -> Callable[[Command], Command]:
    option: Callable[[Command], Command] = click.option(
        "--seconds", type=FiniteRange(1), default=default, show_default=True, help=what
    )
    return option


def dataset_options(command: Command) -> Command:
    where = click.option(
        "--data-dir", type=click.Path(path_type=Path), help="Folder of idx files, else $MNIST_DIR or $EMNIST_DIR."
    )
    names = click.Choice(DIGIT_SETS)
    which = click.option(
        "--dataset", type=names, default="mnist", show_default=True, help="Data set of the test images."
    )
    decorated: Command = which(where(command))
    return decorated
