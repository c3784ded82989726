import io
import json

import commands
import numpy as np
from PIL import Image

from benchmarks.studies.search import BATCH_SIZES, LEARNING_RATES, Axis, Search
from benchmarks.studies.tune import tune

QUICK = ["--depth", "1", "--epochs", "1", "--train-images", "120", "--device", "cpu"]
SPACE = {
    "lr": Axis(LEARNING_RATES["vitbn"]),
    "batch_size": Axis(BATCH_SIZES),
    "depth": Axis((1, 1)),
    "schedule": Axis(("constant",), listed=True),
}
SEARCH = Search("vitbn", "digits", SPACE, 1, 120, 287, 0)


def run(folder, *arguments):
    return commands.ok(tune, *QUICK, "--output", folder, *arguments).stdout


def failure(folder, *arguments):
    return commands.failure(tune, *QUICK, "--output", folder, *arguments)


def outcomes(folder):
    rows = json.loads((folder / "vitbn.trials.json").read_text())["trials"]
    return [(row["trial"], row["parameters"], row["accuracy"], row["error"]) for row in rows]


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 3)
