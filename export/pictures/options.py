"""The options of `vitbn repository publish --pictures`, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from common.framing import FILTERS

if TYPE_CHECKING:
    from export.pictures.picture_artifact import Made
    from export.pictures.processor import Processor
    from export.pictures.uint8_input import Interface
    from export.publishing.artifact import Artifact

Command = TypeVar("Command", bound=Callable[..., Any])
MOST_IMAGES, FEWEST_IMAGES = 256, 4  # of a request
UNKNOWN_IMAGES = 16  # of a network whose work was not counted
MOST_MACS = 128e9  # of a request: seconds on a core
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class PictureOptions:
    """`mean`, `std`: of levels from 0 to 1, of each channel or of all. None: not given."""

    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    processor: Path | None
    labels: Path | None
    crop: float | None
    resize: str | None
    temperature: float | None


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in value.replace(",", " ").split())
    except ValueError as error:
        raise click.BadParameter(f"expected numbers such as 0.5 or 0.485,0.456,0.406, found {value!r}") from error
    if len(numbers) not in (1, 3):
        raise click.BadParameter(f"expected one number or three, found {value!r}")
    if not all(0 <= number <= 1 for number in numbers):  # NaN too
        raise click.BadParameter(f"expected numbers from 0 to 1, of levels from 0 to 1, found {value!r}")
    if parameter.name == "std" and not all(numbers):
        raise click.BadParameter(f"expected numbers above 0, found {value!r}")
    return numbers


def picture_options(command: Command) -> Command:
    """Passes `pictures`, PictureOptions or None."""

    @click.option("--pictures", is_flag=True, help="A classifier of pictures of any origin.")
    @click.option(
        "--processor",
        type=_FILE,
        help="With --pictures: preprocessor_config.json of transformers, or timm's pretrained_cfg as JSON.",
    )
    @click.option(
        "--mean",
        callback=_numbers,
        metavar="M[,M,M]",
        help="In place of --processor: subtracted from levels from 0 to 1.",
    )
    @click.option("--std", callback=_numbers, metavar="S[,S,S]", help="In place of --processor: divides them then.")
    @click.option(
        "--crop",
        type=click.FloatRange(0, 1, min_open=True),
        help="In place of --processor: the middle's share of the picture.  [default: 1]",
    )
    @click.option(
        "--resize", type=click.Choice(FILTERS), help="In place of --processor: the filter.  [default: bicubic]"
    )
    @click.option(
        "--labels", type=_FILE, help="With --pictures: a text file with a class a line, or the network's config.json."
    )
    @click.option(
        "--temperature",
        type=click.FloatRange(0, 1000, min_open=True),
        help="With --pictures: divides the scores; `vitbn bench accuracy` fits it.  [default: 1]",
    )
    @wraps(command)
    def wrapped(*arguments: Any, pictures: bool, **given: Any) -> Any:
        options = PictureOptions(**{each.name: given.pop(each.name) for each in fields(PictureOptions)})
        _check(pictures, options)
        return command(*arguments, pictures=options if pictures else None, **given)

    return cast(Command, wrapped)


def _check(pictures: bool, options: PictureOptions) -> None:
    given = [f"--{name}" for name, value in vars(options).items() if value is not None]
    if given and not pictures:
        raise click.UsageError(f"expected --pictures with {given[0]}, found {given[0]} alone")
    beside = {"--mean", "--std", "--crop", "--resize"} & {*given}
    if options.processor and beside:
        raise click.UsageError(f"expected --processor or {sorted(beside)[0]}, found both")
    if (options.mean is None) != (options.std is None):
        raise click.UsageError("expected --mean and --std, found one of them")


def read_pictures(file: Path, options: PictureOptions) -> tuple[Artifact, str, int]:
    """With the model's default name, and the largest number of pictures in a request. Raises ExportError."""
    from export.pictures.labels_file import read_labels
    from export.pictures.picture_artifact import make

    labels = None if options.labels is None else read_labels(options.labels)
    made = make(file, partial(_processor, file, options), labels, options.temperature)
    _print(made)
    return made.artifact, file.stem, _most_images(made)


def _most_images(made: Made) -> int:
    if made.rewritten is None:
        return UNKNOWN_IMAGES
    most = MOST_IMAGES
    while most > FEWEST_IMAGES and most * made.rewritten.steps[-1].macs > MOST_MACS:
        most //= 2
    return most


def _processor(file: Path, options: PictureOptions, found: Interface) -> Processor:
    from export.errors import PublishError
    from export.pictures.processor import from_options
    from export.pictures.processor_file import read_processor

    if options.processor:
        return read_processor(options.processor, found.size)
    if found.reads_bytes and options.mean is not None:
        raise PublishError(f"{file}: expected no --mean: the network reads bytes, found {options.mean}")
    if (options.mean is None or options.std is None) and not found.reads_bytes:
        raise PublishError(
            f"{file}: expected --processor, or --mean and --std: the network reads floats "
            "(0 and 1 where it reads levels from 0 to 1)"
        )
    if found.size is None:
        raise PublishError(f"{file}: expected a fixed height and width, found free ones; --processor names them")
    return from_options(
        options.mean or (0.0,), options.std or (1.0,), options.crop or 1.0, options.resize or FILTERS[0], found.size
    )


def _print(made: Made) -> None:
    from export.pass_report import step_lines

    if made.rewritten:
        for line in step_lines("as it was", made.rewritten.work, " a picture", made.rewritten.steps):
            click.echo(line)
    else:
        click.echo(f"Not rewritten: {made.left}")
    if made.normalises is None:
        click.echo("The network reads bytes, no processor's numbers")
    else:
        before = ", ".join(made.normalises)
        kept = f"stay before the network: {before}" if before else "are in its first layer"
        click.echo(f"The processor's numbers {kept}")
    for proof in made.proofs:
        click.echo(f"Proved {proof}")
