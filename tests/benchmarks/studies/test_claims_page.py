import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from commands import failure

from benchmarks.studies.claims_page import drawn_from, filled, rows_of, write
from benchmarks.studies.claims_pictures import PICTURES
from benchmarks.studies.claims_tables import TABLES
from benchmarks.studies.results import Results
from benchmarks.studies.study import study
from benchmarks.studies.study_writer import StudyError

ROOT = Path(__file__).parents[3]
PAGE, RESULTS = ROOT / "docs/claims.md", ROOT / "benchmarks/results/studies"


def test_the_page_is_that_of_the_committed_results():
    """Else: `vitbn study claims`."""
    assert PAGE.read_text() == filled(PAGE.read_text(), Results(RESULTS))


def test_the_pictures_are_those_of_the_committed_results_and_shown():
    shown = re.findall(r"\]\(claims/(\S+)\.png\)", PAGE.read_text())
    assert sorted(shown) == sorted(PICTURES)
    for name, make in PICTURES.items():
        assert drawn_from(ROOT / f"docs/claims/{name}.png") == make(Results(RESULTS)).digest(), name


def test_tables_can_be_read_at_a_glance():
    for name in TABLES:
        header, *rows = rows_of(name, Results(RESULTS))
        assert 1 <= len(rows) <= 6, name
        assert all(len(row) == len(header) for row in rows), name
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [re.sub(r"\[(.*)\]\(.*\)", r"\1", cell).strip() for row in rows for cell in row.split("|")]
    assert max(map(len, cells)) <= 60


def test_unfavourable_verdicts_come_first():
    text = PAGE.read_text()
    order = ["no", "on a CPU no, on a GPU not tested", "small run only: no", "not tested"]
    order += ["holds 6 against 1 only", "holds in part", "holds"]
    verdicts = re.findall(r"^\| ([^|]+) \| \[", text, re.MULTILINE)
    assert verdicts == sorted(verdicts, key=order.index)
    linked = re.findall(r"\]\(#([\w-]+)\) \|$", text, re.MULTILINE)
    sections = [
        re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in re.findall(r"^## (.*)$", text, re.M)
    ]
    assert linked == sections[: len(linked)]


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "studies", ignore=shutil.ignore_patterns("*.png", "*.md"))
    shutil.copytree(PAGE.with_suffix(""), tmp_path / "claims")
    (tmp_path / "claims.md").write_text(PAGE.read_text())
    return tmp_path


def test_other_figures_make_another_page_and_another_picture(copied):
    path = copied / "studies/dnn/dnn.json"
    result = json.loads(path.read_text())
    result["runs"][0]["series"][-1]["test_accuracy"] = 0.999
    path.write_text(json.dumps(result))
    page, *pictures = write(copied / "claims.md", copied / "studies")
    assert re.search(r"\| rate 0\.01, last epoch +\| 87\.\d \(81\.\d to 99\.9\) \|", page.read_text())
    changed = [path.stem for path in pictures if drawn_from(path) != drawn_from(ROOT / f"docs/claims/{path.name}")]
    assert changed == ["sigmoids"]


def test_a_run_that_diverged_at_once_counts_as_chance(copied):
    path = copied / "studies/dnn/dnn.json"
    result = json.loads(path.read_text())
    for run in result["runs"]:
        if run["at"] == {"rate": "0.1", "model": "dnn"}:
            run["series"] = []
    path.write_text(json.dumps(result))
    assert rows_of("sigmoids", Results(copied / "studies"))[-1][:2] == ["rate 0.1, last epoch", "10.0 (10.0 to 10.0)"]


@pytest.mark.parametrize("content", ["", "{}", '{"scope": {"train_images": 1}, "runs": []}'])
def test_a_file_that_is_no_result_is_named(content, copied):
    (copied / "studies/dnn/dnn.json").write_text(content)
    before = (copied / "claims.md").read_bytes()
    line, code = failure(study, "claims", "--results", copied / "studies", "--page", copied / "claims.md")
    assert (code, "dnn.json: expected the result of a study, found" in line) == (1, True)
    assert (copied / "claims.md").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("claims --page pipe", 1, "pipe: no regular file"),
        ("claims --page bytes", 1, "claims: expected the tables "),
        ("layout --output bytes", 1, "bytes: Not a directory"),
        (f"depths --output bytes --seeds {10**30}", 2, "Invalid value for '--seeds'"),
    ],
)
def test_a_wrong_place_or_number_is_refused_at_once(words, code, said, tmp_path, small_mnist):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with contextlib.chdir(tmp_path):
        line, status = failure(
            study, *words.split(), *(["--results", RESULTS] if "--page" in words else ["--data-dir", small_mnist])
        )
    assert (status, line.startswith(f"Error: {said}")) == (code, True), line


@pytest.mark.parametrize("damage", ["<!-- table falls -->", "<!-- table dnn -->"])
def test_a_page_with_other_markers_is_refused(damage):
    text = PAGE.read_text().replace("<!-- table sigmoids -->", damage)
    with pytest.raises(StudyError, match="expected the tables critical-depth,"):
        filled(text, Results(RESULTS))
