import pytest

from benchmarks.measure.progress import share_bar, steps
from benchmarks.reporting.tables.latencies import rough


def test_where_no_terminal_is_each_stage_and_quarter_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(steps([1, 2], "Searching")) == [1, 2]
    with share_bar("batch 64") as show:
        for share in (0.1, 0.3, 0.4, 0.8, 1.2):
            show(share)
    with share_bar("") as show:
        show(1.0)
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        "Searching …",
        *(f"batch 64: {percent} %" for percent in (25, 75, 100)),
    ]
    assert output.out == ""


@pytest.mark.parametrize(
    ("value", "text"), [(1229.75, "1,200"), (10.12, "10"), (2.77, "2.8"), (0.0123, "0.012"), (1.0, "1.0")]
)
def test_an_unstable_ratio_has_two_digits(value: float, text: str) -> None:
    assert rough(value) == text
