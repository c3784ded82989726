"""The command line: the picture of a digit in, the digit and its probability out.

    python clients/infer.py digit.png
    digit.png: 3 (99.5 %)

Exit codes: 0 answered, 1 the image cannot be classified, 2 usage, 3 the server did not answer.
numpy, Pillow and tritonclient are imported where they are used, so that --help and usage errors come at once.
"""

import json
import time
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from clients.classifier import Prediction


class _ServerFailure(click.ClickException):
    """One line on standard error; an image that cannot be classified is click's own, with exit code 1."""

    exit_code = 3


@click.command()
@click.argument("image", type=click.Path())
@click.option("--model", help="Name of the model on the server.  [default: the best transformer there]")
@click.option("--url", metavar="HOST:PORT", help="Where the server is.  [default: 127.0.0.1, Triton's port]")
@click.option("--protocol", type=click.Choice(["http", "grpc"]), default="http", show_default=True)
@click.option("--top", type=click.IntRange(min=1), metavar="K", help="Also print the K most probable labels.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def infer(
    image: str, model: str | None, url: str | None, protocol: Literal["http", "grpc"], top: int | None, as_json: bool
) -> None:
    """Ask the server which digit IMAGE shows: a drawing, a scan or a photo, dark on light or light on dark."""
    prediction, served, latency_ms = _ask(image, model, url, protocol)
    ranked = prediction.top(top or 1)
    if as_json:
        answer = {
            "file": image,
            "label": prediction.label,
            "probability": prediction.probability,
            "top": [{"label": label, "probability": probability} for label, probability in ranked],
            "model": served,
            "version": prediction.version,
            "latency_ms": round(latency_ms, 3),
        }
        click.echo(json.dumps(answer))
        return
    click.echo(f"{image}: {prediction.label} ({100 * prediction.probability:.1f} %)")
    if top:
        width = max(len(label) for label, _ in ranked)
        for label, probability in ranked:
            click.echo(f"  {label:>{width}}  {100 * probability:5.1f} %")


def _ask(
    image: str, model: str | None, url: str | None, protocol: Literal["http", "grpc"]
) -> tuple["Prediction", str, float]:
    """What the server says of the file, the name of the model that said it, and the request's milliseconds."""
    from clients.classifier import Classifier
    from clients.preprocess import ClientError, InvalidImage, read_image, to_model_input

    try:
        pixels = to_model_input(read_image(image))
        with Classifier(url, model, protocol) as classifier:
            start_ns = time.perf_counter_ns()
            (prediction,) = classifier.classify(pixels[None])
            return prediction, classifier.model.name, (time.perf_counter_ns() - start_ns) / 1e6
    except InvalidImage as error:
        raise click.ClickException(str(error)) from error
    except ClientError as error:
        raise _ServerFailure(str(error)) from error


if __name__ == "__main__":
    infer()
