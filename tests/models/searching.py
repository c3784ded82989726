import io
import json

import numpy as np
from click.testing import CliRunner
from PIL import Image

from models.search import BATCH_SIZES, LEARNING_RATES, Axis, Search
from models.tune import tune

QUICK = ["--depth", "1", "--epochs", "1", "--train-images", "120", "--device", "cpu"]
SPACE = {
    "lr": Axis(LEARNING_RATES["vitbn"]),
    "batch_size": Axis(BATCH_SIZES),
    "depth": Axis((1, 1)),
    "schedule": Axis(("constant",), listed=True),
}
SEARCH = Search("vitbn", "digits", SPACE, 1, 120, 287, 0)


def run(folder, *arguments):
    result = CliRunner().invoke(tune, [*QUICK, "--output", str(folder), *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def failure(folder, *arguments):
    result = CliRunner().invoke(tune, [*QUICK, "--output", str(folder), *map(str, arguments)])
    assert isinstance(result.exception, SystemExit), result.exception
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert result.stderr.endswith(errors[0] + "\n")
    return errors[0], result.exit_code


def outcomes(folder):
    rows = json.loads((folder / "vitbn.trials.json").read_text())["trials"]
    return [(row["trial"], row["parameters"], row["accuracy"], row["error"]) for row in rows]


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 3)
