import gzip
from functools import partial

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from bulk_inputs import expected, png, publish, run, write_network, write_parquet, write_tar
from idx_files import idx_bytes

from clients.bulk.network import Network, find_model
from clients.bulk.part_reader import Reader
from clients.errors import ModelMismatch, ModelNotFound
from clients.images.prepare import Preparation

FORMS = ("folder", "idx", "tar", "pixels", "lists", "encoded", "struct")


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


def test_a_shard_without_pictures_gives_a_file_without_rows(tmp_path, digits, network):
    write_tar(tmp_path / "x.tar", {"000.cls": b"7"})
    empty = run([tmp_path / "x.tar"], tmp_path / "out", network)
    write_tar(tmp_path / "y.tar", {"1.png": png(digits[0])})
    assert len(empty) == 0
    assert empty.schema == run([tmp_path / "y.tar"], tmp_path / "other", network).schema


def test_a_picture_is_decoded_before_the_next_is_read(digits):
    held = 0

    def read(number: int) -> bytes:
        nonlocal held
        held -= 1
        return png(digits[number])

    def pictures():
        nonlocal held
        for number in range(len(digits)):
            held += 1
            assert held == 1
            yield str(number), partial(read, number)

    (block,) = Reader(Preparation((1, 28, 28), "photo", None, None), None)._decoded(pictures())
    assert len(block.pixels) == len(digits)
    assert not block.errors


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
def test_an_invalid_temperature_or_preprocessing_is_refused(tmp_path, config):
    file = write_network(tmp_path / "x.onnx", **config)
    with pytest.raises(ModelMismatch, match=r"of the exporter, found the (temperature|preprocessing)"):
        Network(find_model(file))
