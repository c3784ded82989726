import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_results as sample
from click.testing import CliRunner

from benchmarks.measure.timing import Ratio
from benchmarks.report import report
from benchmarks.reporting.build import ANSWERS, overlap, page
from benchmarks.reporting.page import Heading, Points, Table, Text, html, markdown
from benchmarks.reporting.sections_models import fastest
from benchmarks.reporting.sections_serving import machines, undominated
from benchmarks.reporting.sources import COMMANDS, find, times_faster

ROOT = Path(__file__).parents[2]
VOID = {"meta", "img", "br"}


class Checked(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.references += [value for name in ("src", "href") if (value := values.get(name))]
        self.ids |= {value for name, value in attrs if name == "id" and value}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Checked:
    checked = Checked()
    checked.feed(text)
    checked.close()
    assert not checked.open
    return checked


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for make in sample.EVERY:
        sample.write(folder / "results" / f"{make.__name__}.json", make())
    sample.write(folder / "results/second/rewrites.json", sample.rewrites(faster=1.05))
    (folder / "results/searches.json").write_text('{"trials": []}')
    result = CliRunner().invoke(report, ["build", str(folder / "results"), "--output", str(folder / "out")])
    assert result.exit_code == 0, result.output
    return folder / "out"


@pytest.mark.slow
def test_every_question_is_answered(built: Path) -> None:
    text = (built / "report.md").read_text()
    measured, gaps = text.split("## What was not measured")
    assert "ot measured**" not in measured
    assert "GPU" in gaps
    assert "TensorRT" in gaps
    assert text.count("\n## ") == sum(bool(needs) for _, needs in ANSWERS) + 4  # in short, agreement, gaps, origin
    assert "**10.0** times (9.00 to 11.0) as fast as its plain export" in text
    assert "| vitbn, all; plain = 1 | 6 | 10.0 (9.00 to 11.0) | 10.5 (9.45 to 11.6) | yes |" in text
    assert "there is no GPU: vit tensorrt fp32" in text
    assert "512 in flight: not measured, the queue is full" in text
    assert "searches.json" not in text


@pytest.mark.slow
def test_the_markdown_shows_pictures_that_are_there_in_both_formats(built: Path) -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (built / "report.md").read_text())
    assert len(pictures) == len(set(pictures)) == 12
    for name in pictures:
        assert (built / name).read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (built / name).with_suffix(".svg").read_bytes()


@pytest.mark.slow
def test_the_html_is_well_formed_and_asks_for_nothing(built: Path) -> None:
    checked = parsed((built / "report.html").read_text())
    assert not checked.tags & {"script", "link", "iframe"}
    inside = [one for one in checked.references if not one.startswith("data:image/svg+xml;base64,")]
    assert {one.removeprefix("#") for one in inside} <= checked.ids
    assert len(checked.references) - len(inside) == 12


@pytest.mark.slow
def test_the_same_results_give_the_same_page(built: Path, tmp_path: Path) -> None:
    arguments = ["build", str(built.parent / "results"), "--output", str(tmp_path)]
    assert CliRunner().invoke(report, arguments).exit_code == 0
    assert (tmp_path / "report.html").read_bytes() == (built / "report.html").read_bytes()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("make", sample.EVERY)
def test_what_is_not_there_is_said_to_be_not_measured(make: object, tmp_path: Path) -> None:
    sample.write(tmp_path / "one.json", make())  # type: ignore[operator]
    found = find(tmp_path)
    text = markdown("One", page(found))
    for name, command in COMMANDS.items() - {("faults", COMMANDS["faults"])}:  # its section comes with its result
        assert (f"**Not measured**: none of the files is a result of `{command}`" in text) == (not found.all(name))


def test_no_results(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"study": "depths"}')
    result = CliRunner().invoke(report, ["build", str(tmp_path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"Error: {tmp_path}: expected JSON files of the benchmarks, found none" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_result_is_only_named(tmp_path: Path) -> None:
    sample.write(tmp_path / "bulk.json", {"benchmark": "bulk", "interrupted": True, "rows": 10_000})
    result = CliRunner().invoke(report, ["build", str(tmp_path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert (
        f"Error: {tmp_path}: expected JSON files of the benchmarks, found only interrupted: bulk.json" in result.output
    )
    sample.write(tmp_path / "overhead.json", sample.overhead())
    assert "- `bulk.json`: interrupted, not on this page." in markdown("Both", page(find(tmp_path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"benchmark": ', "expected a JSON file"),
        ('{"benchmark": "latency", "rows": []}', "expected the environment of a latency result, found none"),
    ],
)
def test_a_damaged_file(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text(content)
    result = CliRunner().invoke(report, ["build", str(tmp_path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"half.json: {said}" in result.output


@pytest.mark.usefixtures("undrawn")
def test_files_of_other_programs_are_ignored(tmp_path: Path) -> None:
    sample.write(tmp_path / "accuracy.json", sample.accuracy())
    for number, content in enumerate(('{"benchmark": ["a"]}', '{"benchmark": {"a": 1}}', "[]", '{"study": 5}')):
        (tmp_path / f"{number}.json").write_text(content)
    assert [file.name for file in find(tmp_path).files] == ["accuracy.json"]


@pytest.mark.usefixtures("undrawn")
def test_operators_that_were_killed_before_the_rewritten_graph(tmp_path: Path) -> None:
    whole = sample.operators()
    plain = [graph for graph in whole["graphs"] if graph["rewrites"] == "plain"]
    sample.write(tmp_path / "operators.json", whole | {"graphs": plain})
    text = markdown("Part", page(find(tmp_path)))
    assert "rewrites: plain" in text
    assert "with all rewrites" not in text


@pytest.mark.usefixtures("undrawn")
def test_overhead_that_was_killed_before_its_second_table(tmp_path: Path) -> None:
    whole = sample.overhead()
    rows = [row for row in whole["rows"] if row["images_a_call"] > 1]
    sample.write(tmp_path / "overhead.json", whole | {"rows": rows})
    assert "10,000" in markdown("Part", page(find(tmp_path)))


@pytest.mark.usefixtures("undrawn")
def test_two_machines_are_said(tmp_path: Path) -> None:
    sample.write(tmp_path / "a.json", sample.rewrites())
    sample.write(tmp_path / "b.json", sample.frontier(), cpu="Another CPU")
    assert "**2 kinds of machines**" in markdown("Two", page(find(tmp_path)))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_gpu_is_never_counted_as_cores(built: Path, tmp_path: Path) -> None:
    faster = sample.throughput()
    for row in faster["rows"]:
        row |= {"images_per_s": 1000 * row["images_per_s"], "engine": "tensorrt", "precision": "fp16"}
        row |= {"shared_memory": "cuda"}
    for make in (sample.frontier, sample.throughput, sample.overhead):
        sample.write(tmp_path / f"{make.__name__}.json", make())
    sample.write(tmp_path / "gpu/throughput.json", faster, device="NVIDIA H200")
    sample.write(tmp_path / "gpu/overhead.json", sample.overhead(), device="NVIDIA H200")
    text = markdown("Both", page(find(tmp_path)))
    assert "No GPU figure" not in text
    assert "No GPU figure exists yet" in (built / "report.md").read_text().split("##")[0]
    assert "| vitbn-tiny, 1 a request | 98.73 | 500 | 4.0 | 4.00 | 2 | 400 | 200 |" in text
    costs = {line.split(" | ")[6] for line in text.splitlines() if "-seconds a million images" in line}
    assert costs == {"core-seconds a million images", "GPU-seconds a million images"}
    assert "| grpc | 1 x all | 8 in flight | 64 | 4,000 | 500 |" in text, "two cores for 250 s"
    assert "| grpc, CUDA shared memory | TensorRT fp16, 1 x all | 8 in flight | 64 | 4,000,000 | 0.25 |" in text
    assert "A CPU, NVIDIA H200" in text


@pytest.mark.usefixtures("undrawn")
def test_a_call_on_a_gpu_has_three_times_and_a_floor(tmp_path: Path) -> None:
    result = sample.latency()
    state = {"sm_mhz": [1900, 1950, 1980], "power_w": [400.0, 500.0, 600.0], "temperature_c": [50, 55, 60]}
    result["rows"][0] |= {"device_p50_ms": 0.6, "copies_p50_ms": 0.9, "floor_ms": 0.57, "p50_ms": 0.7}
    result["rows"][0] |= {"gpu_state": state | {"rejected": {"hardware thermal": 2}}, "fallback": "no CUDA graph"}
    sample.write(tmp_path / "latency.json", result, device="NVIDIA H200")
    text = markdown("One", page(find(tmp_path)))
    times = "0.600 | 0.700 | 0.900 | 0.570 | 1,900 to 1,980 | 400 to 600 | 50 to 60 | 2 |"
    assert f"| ViTBN | label of torch | fp32 | 5,000 | {times}" in text
    assert "- label of torch, fp32: no CUDA graph" in text
    assert text.count("label of onnx-optimized") == 1, "a row without the device's times is in the first table alone"


def test_text_cannot_break_the_page() -> None:
    blocks = (Heading("<b> & c?"), Text("`a < b` **bold**"), Points(("<i>",)), Table(("a|b",), (("<td>",),)))
    assert "<code>a &lt; b</code> <strong>bold</strong>" in html("<title>", blocks)
    parsed(html("<title>", blocks))
    assert r"| a\|b |" in markdown("", blocks)


def test_the_ratio_is_of_medians_and_its_interval_holds_it() -> None:
    row, than = sample.timed(20.0), sample.timed(50.0)
    ratio = times_faster(row, than)
    assert ratio.ratio == pytest.approx(2.5, rel=1e-6)
    assert ratio.low <= ratio.ratio <= ratio.high


def test_the_fastest_network_above_an_accuracy() -> None:
    rows = sample.frontier()["derived"]
    assert [row and row["model"] for row in (fastest(rows, floor) for floor in (98.0, 99.0, 99.9))] == [
        "vitbn",
        "cnn",
        None,
    ]


def test_no_network_is_offered_that_another_beats() -> None:
    rows = sample.frontier()["derived"]
    best = undominated(rows, {row["checkpoint"]: row for row in rows})
    assert [network["model"] for network, _ in best] == ["vitbn", "cnn"]


@pytest.mark.parametrize(
    ("wanted", "rate", "expected"), [(1000, 500.0, 2), (1000, 501.0, 2), (1000, 499.0, 3), (1, 9.0, 1)]
)
def test_machines(wanted: float, rate: float, expected: int) -> None:
    assert machines(wanted, rate) == expected


@pytest.mark.slow
def test_cores_for_a_rate(built: Path) -> None:
    text = (built / "report.md").read_text()
    assert "| vitbn-tiny, 1 a request | 98.73 | 500 | 4.0 | 4.00 | 2 | 400 | 200 |" in text


@pytest.mark.parametrize(("low", "high", "expected"), [(1.1, 2, "yes"), (1.3, 2, "**no**"), (0.5, 0.9, "**no**")])
def test_intervals_overlap(low: float, high: float, expected: str) -> None:
    assert overlap(Ratio(1.0, 0.95, 1.2), Ratio(1.0, low, high)) == expected


def test_help_needs_no_result() -> None:
    result = CliRunner().invoke(report, ["--help"])
    assert {"build", "compare"} <= set(result.output.split())
