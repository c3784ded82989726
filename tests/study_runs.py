import json
from datetime import datetime
from functools import partial

import commands

from benchmarks.studies.study import study
from benchmarks.studies.study_writer import TIMING, WITH_TEACHER_CACHE

run, failure = partial(commands.invoke, study), partial(commands.failure, study)


def carried_out(name, mnist, output, *arguments):
    """After common checks."""
    commands.ok(study, name, "--data-dir", mnist, "--output", output, "--device", "cpu", *arguments)
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
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (output / f"{name}.md").read_text().splitlines()
        if line[:1] == "|"
    ]
    header, _, *rows = lines
    return [dict(zip(header, row, strict=True)) for row in rows]
