import json
from datetime import datetime
from functools import partial

import commands
from random_networks import saved

from models.studies.page import TIMING, WITH_TEACHER_CACHE
from models.study import study

run, failure = partial(commands.invoke, study), partial(commands.failure, study)
RECIPE = {"dataset": "mnist", "batch_size": 50, "lr": 0.01, "schedule": "one-cycle", "hold_out": 5000}


def carried_out(name, mnist, output, *arguments):
    """After common checks."""
    result = run(name, "--data-dir", mnist, "--output", output, "--device", "cpu", *arguments)
    assert result.exit_code == 0, result.output
    written = json.loads((output / f"{name}.json").read_text())
    assert written["study"] == name
    assert written["question"]
    assert datetime.fromisoformat(written["date"]).tzinfo
    assert written["timing"].startswith(WITH_TEACHER_CACHE if "--teacher-cache" in arguments else TIMING)
    assert written["environment"]["packages"]["torch"]
    assert str(output) not in json.dumps(written)
    assert str(mnist) not in json.dumps(written)
    page = (output / f"{name}.md").read_text()
    pictures = sorted(path.name for path in output.glob("*.png"))
    assert pictures
    assert all(f"![{picture}]({picture})" in page for picture in pictures)
    assert written["command"] in page
    return written


def rows_of(output, name):
    """Of the page's table: a dictionary a row."""
    lines = [
        line.strip("| ").split(" | ") for line in (output / f"{name}.md").read_text().splitlines() if line[:1] == "|"
    ]
    header, _, *rows = lines
    return [dict(zip(header, row, strict=True)) for row in rows]


def shipped(folder, *configs, **metrics):
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    for config in configs:
        described = {"dataset": "mnist", "test_accuracy": 0.5, "test_images": 40, "epochs": 7, "command": "none"}
        path = folder / f"{config.model}-{config.depth}.safetensors"
        saved(path, config, described | metrics)
    return folder
