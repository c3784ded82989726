"""The options of `vitbn repository publish --pictures`, the processor that they describe, and the printed lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from common.finite_range import FiniteRange
from common.preprocessing_settings import FILTERS

if TYPE_CHECKING:
    from export.pictures.picture_artifact import MadeArtifact
    from export.pictures.processor import Processor
    from export.pictures.uint8_input import Interface
    from export.publishing.artifact import Artifact

Command = TypeVar("Command", bound=Callable[..., Any])
MOST_IMAGES, FEWEST_IMAGES = 256, 4  # in a batch
UNKNOWN_IMAGES = 16  # in a batch of a network whose multiply-accumulates were not counted
MOST_MACS = 128e9  # multiply-accumulates of a batch: some seconds on a core
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class PictureOptions:
    """The values of the options; None: not given.

    `mean`, `std`: of levels from 0 to 1, a number for all channels or a number for each channel.
    """

    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    processor: Path | None
    labels: Path | None
    crop: float | None
    resize: str | None
    temperature: float | None


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """One number or three from 0 to 1, separated by commas or spaces."""
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
    """Gives a command the options, and passes them as `pictures`: PictureOptions, or None without --pictures."""

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
        type=FiniteRange(0, 1, min_open=True),
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
        type=FiniteRange(0, 1000, min_open=True),
        help="With --pictures: divides the scores; `vitbn bench accuracy` fits it.  [default: 1]",
    )
    @wraps(command)
    def wrapped(*arguments: Any, pictures: bool, **values: Any) -> Any:
        options = PictureOptions(**{field.name: values.pop(field.name) for field in fields(PictureOptions)})
        _check(pictures, options)
        return command(*arguments, pictures=options if pictures else None, **values)

    return cast(Command, wrapped)


def _check(pictures: bool, options: PictureOptions) -> None:
    """Raises UsageError for options that need --pictures, or that contradict each other."""
    names = [f"--{name}" for name, value in vars(options).items() if value is not None]
    if names and not pictures:
        raise click.UsageError(f"expected --pictures with {names[0]}, found {names[0]} alone")
    instead = {"--mean", "--std", "--crop", "--resize"} & {*names}
    if options.processor and instead:
        raise click.UsageError(f"expected --processor or {sorted(instead)[0]}, found both")
    if (options.mean is None) != (options.std is None):
        raise click.UsageError("expected --mean and --std, found one of them")


def read_pictures(file: Path, options: PictureOptions) -> tuple[Artifact, str, int]:
    """The artifact of `file`, the model's default name, and its largest batch. Prints lines. Raises ExportError."""
    from export.pictures.labels_file import read_labels
    from export.pictures.picture_artifact import make_picture_artifact

    labels = None if options.labels is None else read_labels(options.labels)
    made = make_picture_artifact(file, partial(_processor, file, options), labels, options.temperature)
    _print(made)
    return made.artifact, file.stem, _max_batch(made)


def _max_batch(made: MadeArtifact) -> int:
    if made.rewritten is None:
        return UNKNOWN_IMAGES
    images = MOST_IMAGES
    while images > FEWEST_IMAGES and images * made.rewritten.steps[-1].macs > MOST_MACS:
        images //= 2
    return images


def _processor(file: Path, options: PictureOptions, network: Interface) -> Processor:
    """The processor that the options describe. Raises PublishError if they do not suffice for the network."""
    from export.errors import PublishError
    from export.pictures.processor import from_options
    from export.pictures.processor_file import read_processor

    if options.processor:
        return read_processor(options.processor, network.size)
    if network.reads_bytes and options.mean is not None:
        raise PublishError(f"{file}: expected no --mean: the network reads bytes, found {options.mean}")
    if (options.mean is None or options.std is None) and not network.reads_bytes:
        raise PublishError(
            f"{file}: expected --processor, or --mean and --std: the network reads floats "
            "(0 and 1 where it reads levels from 0 to 1)"
        )
    if network.size is None:
        raise PublishError(f"{file}: expected a fixed height and width, found free ones; --processor names them")
    return from_options(
        options.mean or (0.0,), options.std or (1.0,), options.crop or 1.0, options.resize or FILTERS[0], network.size
    )


def _print(made: MadeArtifact) -> None:
    from export.pass_report import step_lines

    if made.rewritten:
        for line in step_lines("as it was", made.rewritten.work, " a picture", made.rewritten.steps):
            click.echo(line)
    else:
        click.echo(f"Not rewritten: {made.not_rewritten}")
    if made.normalising is None:
        click.echo("The network reads bytes, no processor's numbers")
    else:
        nodes = ", ".join(made.normalising)
        place = f"stay before the network: {nodes}" if nodes else "are in its first layer"
        click.echo(f"The processor's numbers {place}")
    for proof in made.proofs:
        click.echo(f"Proved {proof}")
