import os
import re
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_inputs import expected, png, run, write_parquet, write_tar
from fsspec.implementations.memory import MemoryFileSystem
from idx_files import idx_bytes

from clients.bulk.app import _prepare_job, _run
from clients.bulk.job_manifest import JobMismatch, Output, parts_to_do
from clients.bulk.progress import Progress
from clients.bulk.scoring import Outcome, classify_part
from clients.errors import ClientError, InvalidImage


def test_a_pattern_gives_each_file_once(tmp_path, forms, network):
    table = run([forms["folder"] / "**"], tmp_path / "out", network)
    assert len(table) == len(set(table["id"].to_pylist())) == 40


def test_local_names_are_no_chains_of_urls(tmp_path, digits, network):
    for name in ("10::30.png", "_DSC0001.png"):
        (tmp_path / name).write_bytes(png(digits[0]))
    write_tar(tmp_path / "a::b.tar", {"1.png": png(digits[0])})
    (tmp_path / "c::d.idx").write_bytes(idx_bytes(digits[:1]))
    assert run([tmp_path], tmp_path / "out", network)["label"].to_pylist() == expected(digits[:1])[0] * 4


@pytest.mark.parametrize("local", [True, False])
def test_a_folder_that_cannot_be_listed_stops_the_plan(tmp_path, digits, network, monkeypatch, local):
    if local:
        (folder := tmp_path / "pictures").mkdir()
        (folder / "1.png").write_bytes(png(digits[0]))
        with monkeypatch.context() as below:
            below.chdir(folder)
            for _ in range(20):  # together longer than a path may be
                Path("d" * 250).mkdir()
                os.chdir("d" * 250)
    else:
        folder = "memory://locked"
        fsspec.filesystem("memory").pipe_file("/locked/below/1.png", png(digits[0]))
        listed = MemoryFileSystem.ls

        def ls(self, path, *arguments, **options):
            if path.endswith("below"):
                raise PermissionError("denied")
            return listed(self, path, *arguments, **options)

        monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    with pytest.raises(OSError, match=r"File name too long|denied"):
        run([folder], tmp_path / "out", network)
    assert not (tmp_path / "out").exists()


def test_a_second_planner_leaves_an_open_list_alone(tmp_path):
    output = Output(str(tmp_path))
    (tmp_path / "before").write_text("before")
    (tmp_path / "after").write_text("after")
    output.copy_in(tmp_path / "before", "list")
    with output.open("list") as reader:
        output.copy_in(tmp_path / "after", "list")
        assert reader.read() == b"before"
    assert output.read("list") == b"after"
    assert {path.name for path in tmp_path.iterdir()} == {"before", "after", "list"}


def test_an_empty_path_is_not_the_current_folder(tmp_path, network):
    for paths, output in (([""], tmp_path / "out"), ([tmp_path], "")):
        with pytest.raises(ClientError, match="expected a path or URL, found an empty one"):
            run(paths, output, network)


def test_what_is_done_is_skipped_and_a_folder_belongs_to_one_job(tmp_path, forms, network, network_of_ink):
    whole = run([forms["idx"]], tmp_path / "out", network, part_rows=9)
    kept, missing = (tmp_path / f"out/part-0000000{number}.parquet" for number in (1, 3))
    before, content = kept.stat().st_mtime_ns, missing.read_bytes()
    missing.unlink()
    assert run([forms["idx"]], tmp_path / "out", network, part_rows=9).equals(whole)
    assert (kept.stat().st_mtime_ns, missing.read_bytes()) == (before, content)
    with pytest.raises(JobMismatch, match="expected its job's model_file"):
        run([forms["idx"]], tmp_path / "out", network_of_ink)
    with pytest.raises(JobMismatch, match="expected its job's inputs"):
        run([forms["tar"]], tmp_path / "out", network)


def test_a_finished_job_says_so(tmp_path, forms, network, capsys):
    run([forms["idx"]], tmp_path / "out", network)
    job, output = _prepare_job((str(forms["idx"]),), str(tmp_path / "out"), network, "image", "id", None)
    assert _run(job, output, "processes", (0, 1), 1) == 0
    assert capsys.readouterr().err == f"{tmp_path / 'out'}: all parts of this command are there\n"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("part-00000000.parquet", b"", "expected _job.json beside part files, found 1 of an unknown job"),
        ("_job.json", b"no JSON", "_job.json: expected the job of a bulk run"),
        ("_job.json", b"[]", "_job.json: expected the job of a bulk run"),
        ("_job.json", b"{}", "_job.json: expected the job of a bulk run"),
    ],
)
def test_files_of_others_are_not_taken_for_answers(tmp_path, forms, network, name, content, reason):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(content)
    with pytest.raises(JobMismatch, match=reason):
        run([forms["idx"]], tmp_path / "out", network)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_shares_are_disjoint_and_an_incomplete_list_of_parts_is_refused(tmp_path, forms, network):
    job, target = _prepare_job((str(forms["idx"]),), str(tmp_path / "out"), network, "image", "id", 3)
    shares = [[part.number for part in parts_to_do(target, job, (index, 4))] for index in range(4)]
    assert sorted(number for share in shares for number in share) == list(range(14))
    assert shares[1] == [1, 5, 9, 13]
    listed = tmp_path / "out" / job.parts_file
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(JobMismatch, match="expected 14 parts, found 3"):
        list(parts_to_do(target, job, (0, 2)))


def test_a_file_that_changed_since_it_was_planned_is_refused(tmp_path, digits, network):
    (path := tmp_path / "x.idx").write_bytes(idx_bytes(digits))
    job, target = _prepare_job((str(path),), str(tmp_path / "out"), network, "image", "id", None)
    path.write_bytes(idx_bytes(digits[:39]))
    (part,) = parts_to_do(target, job, (0, 1))
    with pytest.raises(JobMismatch, match=r"expected 31376 bytes as planned, found 30592"):
        classify_part(job, part)


def refusals(folder: Path) -> dict[str, tuple[Path, str]]:
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("")
    (folder / "short.idx").write_bytes(idx_bytes(np.zeros((3, 28, 28), np.uint8))[:-1])
    (folder / "labels.idx").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    (folder / "torn.parquet").write_bytes(b"PAR1")
    narrow = write_parquet(folder / "narrow.parquet", pa.array([b"12"], pa.binary(2)))
    words = write_parquet(folder / "words.parquet", pa.array(["12"]))
    text = write_parquet(folder / "text.parquet", pa.array([{"bytes": "12"}]))
    key = write_parquet(folder / "key.parquet", pa.array([b"12"]), id=pa.array([[1]]))
    twice = pa.Table.from_arrays([pa.array([b"12"])] * 2, names=["image", "image"])
    pq.write_table(twice, folder / "twice.parquet")
    pq.write_table(twice.rename_columns(["id", "id"]).append_column("image", twice[0]), folder / "keys.parquet")
    (folder / "footer.parquet").write_bytes(narrow.read_bytes()[:-8] + b"\1\0\0\0PAR1")
    return {
        "absent": (folder / "absent", "expected a file, a folder or a pattern"),
        "empty": (folder / "empty", "found none"),
        "name": (folder / "notes.txt", "found another name"),
        "short idx": (folder / "short.idx", "expected 2368 bytes for 3 images, found 2367"),
        "labels": (folder / "labels.idx", "expected the idx magic"),
        "torn": (folder / "torn.parquet", "expected a Parquet file"),
        "narrow": (narrow, "expected pixels of 784 bytes, found 2"),
        "words": (words, "of bytes or uint8, found string"),
        "text": (text, "of bytes or uint8, found struct<bytes: string>"),
        "key": (key, "expected ids that are text, found list"),
        "twice": (folder / "twice.parquet", "expected one column 'image', found image, image"),
        "keys": (folder / "keys.parquet", "expected one column 'id', found id, id, image"),
        "footer": (folder / "footer.parquet", "expected a Parquet file"),
    }


def test_what_is_no_input_stops_before_anything_is_written(tmp_path, network):
    for name, (path, text) in refusals(tmp_path).items():
        output = tmp_path / "out" / name
        with pytest.raises((InvalidImage, ClientError)) as refusal:
            run([path], output, network)
        assert str(path) in str(refusal.value), name
        assert text in str(refusal.value), name
        assert not output.exists(), name


def test_the_last_line_gives_the_time_taken_though_rows_are_missing():
    progress = Progress(parts=2, rows=1200)
    progress.add(Outcome(0, rows=1100))
    assert re.search("1,100 of 1,200 rows, 1 of 2 parts, .* left$", progress.line())
    progress.add(Outcome(1, rows=1, errors=1))
    assert re.search("1,101 of 1,200 rows, 1 with errors, 2 of 2 parts, .* taken$", progress.line())
