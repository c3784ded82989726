import gzip
import io
import json
import os
import re
import tarfile
import tracemalloc
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_inputs import expected, idx_bytes, png, publish, write_all, write_network, write_parquet, write_tar
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from clients.bulk.app import _job, bulk
from clients.bulk.job import JobMismatch, Output, parts_to_do
from clients.bulk.network import Network, find_model
from clients.bulk.progress import Progress
from clients.bulk.scoring import Outcome, do_part
from clients.errors import ClientError, InvalidImage, ModelMismatch, ModelNotFound

FORMS = ("folder", "idx", "tar", "pixels", "lists", "encoded", "struct")


def run(inputs, output, model, share=(0, 1), id_column="id", part_rows=None) -> pa.Table:
    job, target = _job(tuple(map(str, inputs)), str(output), Path(model), "image", id_column, part_rows)
    for part in list(parts_to_do(target, job, share)):
        do_part(job, part.to_line())
    names = [f"part-{number:08d}.parquet" for number in sorted(target.done())]
    return pa.concat_tables(pq.read_table(target.open(name)) for name in names)


@pytest.fixture(scope="module")
def forms(tmp_path_factory, digits):
    return write_all(tmp_path_factory.mktemp("forms") / "inputs", digits)


@pytest.mark.parametrize("part_rows", [None, 9])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_right_answers(tmp_path, forms, digits, network, form, part_rows):
    table = run([forms[form]], tmp_path / "out", network, part_rows=part_rows)
    labels, probabilities = expected(digits)
    assert table["error"].null_count == len(table) == len(digits)
    assert table["label"].to_pylist() == labels
    np.testing.assert_allclose(table["probability"].to_numpy(), probabilities, rtol=1e-5)
    assert set(table["model_version"].to_pylist()) == {find_model(network).version}
    assert table.schema.metadata[b"sha256"].decode() == find_model(network).sha256
    assert len(set(table["id"].to_pylist())) == len(digits)
    assert table["id"][3].as_py().startswith(str(forms[form]))


def test_a_wrong_weight_gives_other_answers(tmp_path, forms, digits):
    other = write_network(tmp_path / "other.onnx", np.eye(784, 10, dtype=np.float32), preprocessing="photo")
    labels, _ = expected(digits)
    assert run([forms["idx"]], tmp_path / "out", other)["label"].to_pylist() != labels


def test_a_folder_of_shards_and_a_pattern(tmp_path, forms, digits, network):
    inputs = [forms["idx"].parent, str(forms["idx"].parent / "*.tar")]
    table = run(inputs, tmp_path / "out", network)
    assert table["label"].to_pylist() == expected(digits)[0] * (len(FORMS) + 1)


def test_a_zipped_idx_file_is_one_part(tmp_path, digits, network):
    (tmp_path / "x-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(digits)))
    table = run([tmp_path / "x-images-idx3-ubyte.gz"], tmp_path / "out", network, part_rows=9)
    assert table["label"].to_pylist() == expected(digits)[0]
    assert len(list((tmp_path / "out").glob("part-*"))) == 1


def test_pixels_of_another_size_are_fitted(tmp_path, network):
    large = np.full((3, 56, 56), 200, np.uint8)
    (tmp_path / "x-images-idx3-ubyte").write_bytes(idx_bytes(large))
    table = run([tmp_path / "x-images-idx3-ubyte"], tmp_path / "out", network)
    assert table["label"].to_pylist() == expected(large[:, ::2, ::2])[0]


def test_the_id_column_names_the_rows(tmp_path, digits, network):
    pixels = pa.array([each.tobytes() for each in digits], pa.binary(784))
    path = write_parquet(tmp_path / "x.parquet", pixels, key=pa.array(range(100, 140)))
    table = run([path], tmp_path / "out", network, id_column="key")
    assert table["id"].to_pylist() == [str(each) for each in range(100, 140)]


def test_urls_are_read_and_written(digits, network):
    fsspec.filesystem("memory").pipe_file("/shards/x-images-idx3-ubyte", idx_bytes(digits))
    table = run(["memory://shards"], "memory://answers", network, part_rows=9)
    assert table["label"].to_pylist() == expected(digits)[0]
    assert table["id"][39].as_py() == "memory:///shards/x-images-idx3-ubyte[39]"


def test_a_bad_picture_is_a_row_with_an_error(tmp_path, digits, network_of_ink):
    good, blank = png(digits[39]), png(np.full((28, 28), 255, np.uint8))
    write_tar(tmp_path / "a.tar", {"1.png": good, "2.png": b"no picture", "3.png": blank, "4.png": good})
    ragged = [digits[39].ravel().tolist(), [1, 2], None, [0] * 784]
    write_parquet(tmp_path / "b.parquet", pa.array(ragged, pa.list_(pa.uint8())))
    write_parquet(tmp_path / "c.parquet", pa.array([good, None]))
    table = run([tmp_path], tmp_path / "out", network_of_ink)
    bad = [False, True, True, False, False, True, True, True, False, True]
    assert [error is not None for error in table["error"].to_pylist()] == bad
    assert [label is None for label in table["label"].to_pylist()] == bad
    assert [each is None for each in table["probability"].to_pylist()] == bad
    assert "no ink" in table["error"][2].as_py()
    assert "expected 784 pixels, found 2" in table["error"][5].as_py()


def test_pixels_without_ink_are_errors_and_ink_anywhere_is_not(tmp_path, network_of_ink):
    images = np.zeros((4, 28, 28), np.uint8)
    images[0, 14, 5] = images[2, 1, 1] = images[3, 27, 27] = 21
    images[1] = 20
    (tmp_path / "x-images-idx3-ubyte").write_bytes(idx_bytes(images))
    table = run([tmp_path / "x-images-idx3-ubyte"], tmp_path / "out", network_of_ink)
    assert [error is not None for error in table["error"].to_pylist()] == [False, True, False, False]


def test_a_shard_without_pictures_gives_a_file_without_rows(tmp_path, digits, network):
    write_tar(tmp_path / "x.tar", {"000.cls": b"7"})
    empty = run([tmp_path / "x.tar"], tmp_path / "out", network)
    write_tar(tmp_path / "y.tar", {"1.png": png(digits[0])})
    assert len(empty) == 0
    assert empty.schema == run([tmp_path / "y.tar"], tmp_path / "other", network).schema


def test_a_damaged_shard_costs_its_end(tmp_path, digits, network):
    shard = write_tar(tmp_path / "x.tar", {f"{number}.png": png(digits[39]) for number in range(9)})
    shard.write_bytes(shard.read_bytes()[:5000])
    (tmp_path / "x-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(digits))[:-200])
    table = run([tmp_path], tmp_path / "out", network)
    errors = [error for error in table["error"].to_pylist() if error]
    assert len(errors) == 2
    assert all("damaged from here on" in error for error in errors)
    assert table["label"].null_count == 2
    assert table["label"].to_pylist()[1:-1] == [expected(digits[39:])[0][0]] * (len(table) - 2)
    assert len(table) > 3


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda shard: shard[:4500], "truncated header at byte 4096"),
        (lambda shard: shard[:4096], "empty header at byte 4096"),
        (lambda shard: shard[:4100] + b"x" + shard[4101:], "bad checksum at byte 4096"),
    ],
)
def test_a_damaged_header_is_no_end_of_a_shard(tmp_path, digits, network, damage, reason):
    shard = write_tar(tmp_path / "x.tar", {f"{number}.png": png(digits[39]) for number in range(9)})
    shard.write_bytes(damage(shard.read_bytes()))
    errors = run([shard], tmp_path / "out", network)["error"].to_pylist()
    assert errors == [None] * 4 + [f"damaged from here on: {reason}"]


def test_a_link_in_a_shard_is_an_error(tmp_path, digits, network):
    shard = write_tar(tmp_path / "x.tar", {"1.png": png(digits[0])})
    with tarfile.open(shard, "a") as more:
        for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE):
            link = tarfile.TarInfo("2.png")
            link.type, link.linkname = kind, "1.png"
            more.addfile(link)
    errors = run([shard], tmp_path / "out", network)["error"].to_pylist()
    assert errors == [None, *["expected an image, found a link to 1.png"] * 2]


def test_a_shard_is_decoded_as_it_comes(tmp_path, network):
    picture = io.BytesIO()
    Image.fromarray(np.full((600, 600), 9, np.uint8)).save(picture, "BMP")
    write_tar(tmp_path / "x.tar", {f"{number}.bmp": picture.getvalue() for number in range(30)})
    tracemalloc.start()
    assert len(run([tmp_path / "x.tar"], tmp_path / "out", network)) == 30
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15 * len(picture.getvalue())


@pytest.mark.parametrize(
    "damage", [lambda content: content + gzip.compress(b"x"), lambda content: content[:-8] + b"12345678"]
)
def test_the_end_of_a_zipped_file_is_checked(tmp_path, digits, network, damage):
    (tmp_path / "x.idx.gz").write_bytes(damage(gzip.compress(idx_bytes(digits))))
    table = run([tmp_path / "x.idx.gz"], tmp_path / "out", network)
    assert len(table) == 41
    assert "damaged" in table["error"][40].as_py()


def test_a_row_without_pixels_costs_itself(tmp_path, digits, network):
    rows = digits[:9].reshape(9, -1)
    holes = [*rows[:3].tolist(), None, [None, *rows[4].tolist()[1:]], *rows[5:].tolist()]
    lists = write_parquet(tmp_path / "lists.parquet", pa.array(holes, pa.list_(pa.uint8())))
    fixed = pa.array([None if number == 3 else row.tobytes() for number, row in enumerate(rows)], pa.binary(784))
    labels = expected(digits[:9])[0]
    table = run([lists], tmp_path / "lists", network)
    assert table["label"].to_pylist() == [*labels[:3], None, None, *labels[5:]]
    assert table["error"][4].as_py() == "expected 784 pixels, found nulls among them"
    table = run([write_parquet(tmp_path / "fixed.parquet", fixed)], tmp_path / "fixed", network)
    assert table["label"].to_pylist() == [*labels[:3], None, *labels[4:]]


def test_ids_that_are_no_text_fail_their_part(tmp_path, digits, network):
    pixels = pa.array([each.tobytes() for each in digits[:2]], pa.binary(784))
    path = write_parquet(tmp_path / "x.parquet", pixels, key=pa.array([b"a", b"\xff"]))
    with pytest.raises(JobMismatch, match="expected ids that are text, found binary"):
        run([path], tmp_path / "out", network, id_column="key")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_errors(tmp_path, digits, value):
    weights = np.zeros((784, 10), np.float32)
    weights[np.flatnonzero(digits[39] == 0)[0], 3] = value  # of a pixel without ink: 0 times infinity is NaN
    network = write_network(tmp_path / "x.onnx", weights, preprocessing="photo")
    (tmp_path / "x.idx").write_bytes(idx_bytes(digits[39:]))
    table = run([tmp_path / "x.idx"], tmp_path / "out", network)
    assert table["error"].to_pylist() == ["expected finite logits, found NaN or infinity"]
    assert (table["label"].null_count, table["probability"].null_count) == (1, 1)


def test_names_that_are_not_utf8(tmp_path, digits, network):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / os.fsdecode(b"b\xfc.png")).write_bytes(png(digits[0]))
    with tarfile.open(folder / os.fsdecode(b"\xe4.tar"), "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as shard:
        shard.add(folder / os.fsdecode(b"b\xfc.png"), "b\u00fc.png")
    (folder / os.fsdecode(b"\xf6.idx")).write_bytes(idx_bytes(digits[:1]))
    table = run([folder], tmp_path / "out", network)
    ids = [r"b\udcfc.png", r"\udce4.tar/b\udcfc.png", r"\udcf6.idx[0]"]
    assert sorted(table["id"].to_pylist()) == sorted(f"{folder}/{each}" for each in ids)
    assert table["label"].to_pylist() == expected(digits[:1])[0] * 3


def test_a_pattern_gives_each_file_once(tmp_path, forms, network):
    table = run([forms["folder"] / "**"], tmp_path / "out", network)
    assert len(table) == len(set(table["id"].to_pylist())) == 40


def test_local_names_are_no_chains_of_urls(tmp_path, digits, network):
    (tmp_path / "10::30.png").write_bytes(png(digits[0]))
    write_tar(tmp_path / "a::b.tar", {"1.png": png(digits[0])})
    (tmp_path / "c::d.idx").write_bytes(idx_bytes(digits[:1]))
    assert run([tmp_path], tmp_path / "out", network)["label"].to_pylist() == expected(digits[:1])[0] * 3


def test_a_picture_with_an_underscore_is_taken(tmp_path, digits, network):
    (tmp_path / "_DSC0001.png").write_bytes(png(digits[0]))
    assert len(run([tmp_path], tmp_path / "out", network)) == 1


def test_a_pipe_is_not_waited_for(tmp_path, network):
    os.mkfifo(tmp_path / "1.png")
    assert run([tmp_path], tmp_path / "out", network)["error"].to_pylist() == ["expected an image, found a pipe"]


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
    assert not list((tmp_path / "out").iterdir())


def test_storage_that_denies_access_is_no_error_of_the_picture(tmp_path, digits, network, monkeypatch):
    fsspec.filesystem("memory").pipe_file("/expired/1.png", png(digits[0]))
    job, target = _job(("memory://expired",), str(tmp_path / "out"), network, "image", "id", None)

    def denied(*unused, **options):
        raise PermissionError("The provided token has expired")  # as of s3fs, without a number

    monkeypatch.setattr(MemoryFileSystem, "_open", denied)
    (part,) = parts_to_do(target, job, (0, 1))
    with pytest.raises(PermissionError, match="expired"):
        do_part(job, part.to_line())


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


def test_an_incomplete_list_of_parts_is_refused(tmp_path, forms, network):
    job, target = _job((str(forms["idx"]),), str(tmp_path / "out"), network, "image", "id", 9)
    listed = tmp_path / "out" / job.parts_file
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(JobMismatch, match="expected 5 parts, found 3"):
        list(parts_to_do(target, job, (0, 2)))


def test_an_empty_path_is_not_the_current_folder(tmp_path, network):
    for paths, output in (([""], tmp_path / "out"), ([tmp_path], "")):
        with pytest.raises(ClientError, match="expected a path or URL, found an empty one"):
            run(paths, output, network)


def test_what_is_done_is_skipped(tmp_path, forms, network):
    whole = run([forms["idx"]], tmp_path / "out", network, part_rows=9)
    kept, missing = (tmp_path / f"out/part-0000000{number}.parquet" for number in (1, 3))
    before, content = kept.stat().st_mtime_ns, missing.read_bytes()
    missing.unlink()
    assert run([forms["idx"]], tmp_path / "out", network, part_rows=9).equals(whole)
    assert (kept.stat().st_mtime_ns, missing.read_bytes()) == (before, content)


def test_a_folder_belongs_to_one_job(tmp_path, forms, network, network_of_ink):
    run([forms["idx"]], tmp_path / "out", network)
    with pytest.raises(JobMismatch, match="expected its job's model_file"):
        run([forms["idx"]], tmp_path / "out", network_of_ink)
    with pytest.raises(JobMismatch, match="expected its job's inputs"):
        run([forms["tar"]], tmp_path / "out", network)


def test_shares_are_disjoint_and_whole(tmp_path, forms, network):
    job, target = _job((str(forms["idx"]),), str(tmp_path / "out"), network, "image", "id", 3)
    shares = [[part.number for part in parts_to_do(target, job, (index, 4))] for index in range(4)]
    assert sorted(number for share in shares for number in share) == list(range(14))
    assert shares[1] == [1, 5, 9, 13]


def test_a_file_that_changed_since_it_was_planned_is_refused(tmp_path, digits, network):
    (path := tmp_path / "x.idx").write_bytes(idx_bytes(digits))
    job, target = _job((str(path),), str(tmp_path / "out"), network, "image", "id", None)
    path.write_bytes(idx_bytes(digits[:39]))
    (part,) = parts_to_do(target, job, (0, 1))
    with pytest.raises(JobMismatch, match=r"expected 31376 bytes as planned, found 30592"):
        do_part(job, part.to_line())


def test_the_served_version_answers(tmp_path, network):
    other = write_network(tmp_path / "other.onnx", np.eye(784, 10, dtype=np.float32))
    model = publish(tmp_path / "repository", network, other)
    assert find_model(model).version == "2"
    assert find_model(model / "1").version == "1"
    (model / "config.pbtxt").write_text('name: "linear" version_policy { specific { versions: [3] } }')
    with pytest.raises(ModelNotFound, match="found none"):
        find_model(model)
    (model / "config.pbtxt").write_text('name: "linear" version_policy { specific { versions: [1] } }')
    assert (find_model(model).name, find_model(model).version) == ("linear", "1")
    (model / "1/model.onnx").write_bytes(b"changed")
    with pytest.raises(ModelMismatch, match="expected the SHA-256"):
        find_model(model)


@pytest.mark.parametrize("config", [{"preprocessing": "sound"}, {"temperature": "0"}, {"temperature": "nan"}])
def test_a_network_that_cannot_be_right_is_refused(tmp_path, config):
    file = write_network(tmp_path / "x.onnx", **config)
    with pytest.raises(ModelMismatch, match="expected a classifier of the exporter, found the temperature"):
        Network(find_model(file))


@pytest.mark.slow
def test_a_published_network_of_the_exporter_is_right(repository):
    from models.data import load_digits

    network, data = Network(find_model(repository / "vitbn")), load_digits()
    index, probability = network.classify(np.asarray(data.test_images))
    assert (index == np.asarray(data.test_labels)).mean() > 0.95
    assert 0.1 <= probability.min() <= probability.max() <= 1


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
    }


def test_what_is_no_input_stops_before_anything_is_written(tmp_path, network):
    for name, (path, text) in refusals(tmp_path).items():
        output = tmp_path / "out" / name
        with pytest.raises((InvalidImage, ClientError)) as refusal:
            run([path], output, network)
        assert str(path) in str(refusal.value), name
        assert text in str(refusal.value), name
        assert not list(output.iterdir()), name


def test_the_command_says_what_is_wrong_in_a_line(tmp_path, forms):
    (tmp_path / "x.onnx").write_bytes(b"no model")
    arguments = [str(forms["idx"]), "--output", str(tmp_path / "out"), "--model", str(tmp_path / "x.onnx")]
    done = CliRunner().invoke(bulk, arguments)
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "expected a classifier of the exporter" in done.output
    for option in (
        *(("--share", share) for share in ("1", "2/2", "-1/2", "a/b")),
        ("--engine", "ray", "--processes", "2"),
        ("--output", "memory://answers"),
    ):
        assert CliRunner().invoke(bulk, [*arguments, *option]).exit_code == 2, option


def test_the_job_file_is_readable(tmp_path, forms, network):
    run([forms["idx"]], tmp_path / "out", network, part_rows=9)
    job = json.loads((tmp_path / "out/_job.json").read_text())
    assert (job["parts"], job["rows"]) == (5, 40)


def test_the_last_line_gives_the_time_taken_though_rows_are_missing():
    progress = Progress(parts=2, rows=200)
    progress.add(Outcome(0, rows=100))
    assert re.search("100 of 200 rows, 1 of 2 parts, .* left$", progress.line())
    progress.add(Outcome(1, rows=1, errors=1))
    assert re.search("101 of 200 rows, 1 with errors, 2 of 2 parts, .* taken$", progress.line())
