from pathlib import Path

from sample_results import foreign

from benchmarks.contest.foreign_networks import NETWORKS
from benchmarks.reporting.page import markdown
from benchmarks.reporting.sections_foreign import table
from benchmarks.reporting.sources import find

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_committed_result() -> None:
    page, result = (ROOT / "docs/rewrite.md").read_text(), find(ROOT / "benchmarks/results").first("foreign")
    if result is None:
        assert "No speed is published yet." in page
    else:
        assert markdown("", [table(result, intervals=False)]).removeprefix("# \n\n") in page
        assert "No speed is published yet." not in page


def test_the_page_names_every_network() -> None:
    page = (ROOT / "docs/rewrite.md").read_text()
    for name, network in NETWORKS.items():
        assert f"| {network.title} | `{name}` |" in page


def test_a_row_shows_work_norms_and_ratios() -> None:
    (row,) = table(foreign()).rows
    assert row[:6] == ("BERT", "`bert`", "58.7", "29.4", "50.0", "25 to 0")
    assert row[6:] == ("1.80 (1.71 to 1.89)",) * 2 + ("-",) * 2 + ("1.50 (1.42 to 1.58)",) * 2
