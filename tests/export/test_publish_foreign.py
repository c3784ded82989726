import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as http
from artifacts import ARTIFACT
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from onnx_text import parsed
from operating import error, ok, operate
from tritonclient.grpc import model_config_pb2 as pb

from common.repository import versions
from export.errors import PublishError
from export.publishing.artifact import read_version
from export.publishing.build_config_pbtxt import Serving
from export.publishing.foreign_artifact import foreign_artifact
from export.publishing.publish import publish, read_config, serve
from export.publishing.sidecar import read_with_sidecars, write_with_sidecars
from export.publishing.verify import verify_version
from serving.intact_versions import plan
from serving.local_server import running_server

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def network(path: Path, first: int | str = "n", axes: tuple[int, ...] = (1,), kind: int = FLOAT) -> Path:
    """`x:0` and `x_0` (first, 4) -> `sums`: of twice x:0 and x_0 along `axes`."""
    given = [helper.make_tensor_value_info(name, kind, [first, 4]) for name in ("x:0", "x_0")]
    sums = helper.make_tensor_value_info("sums", kind, [first][len(axes) - 1 :])
    nodes = [
        helper.make_node("Mul", ["x:0", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "x_0"], ["added"]),
        helper.make_node("ReduceSum", ["added", "axes"], ["sums"], keepdims=0),
    ]
    two = np.array(2, helper.tensor_dtype_to_np_dtype(kind))
    held = [numpy_helper.from_array(two, "two"), numpy_helper.from_array(np.array(axes), "axes")]
    graph = helper.make_graph(nodes, "sums", given, [sums], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def with_weights_outside(file: Path, folder: Path, place: str) -> Path:
    model = onnx.load(file)
    two = next(tensor for tensor in model.graph.initializer if tensor.name == "two")
    (folder / place).parent.mkdir(parents=True)
    (folder / place).write_bytes(two.raw_data)
    set_external_data(two, place)
    two.ClearField("raw_data")
    onnx.save(model, folder / file.name)
    return folder / file.name


def publish_file(models: Path, file: Path, serving: Serving | None = None, name: str = "sums") -> None:
    publish(models, name, foreign_artifact(file), serving)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return network(tmp_path / "sums.onnx")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def change(model_dir: Path, config: pb.ModelConfig) -> None:
    (model_dir / "config.pbtxt").write_text(text_format.MessageToString(config))


@pytest.mark.live
def test_rows_of_numbers_and_names_that_differ_in_a_sign_are_served(file: Path, models: Path) -> None:
    publish_file(models, file)
    given = np.arange(8, dtype=np.float32).reshape(2, 4)
    inputs = [http.InferInput(name, [2, 4], "FP32").set_data_from_numpy(given) for name in ("x:0", "x_0")]
    with running_server(models, ["--disable-auto-complete-config"]) as server:
        answer = http.InferenceServerClient(server.http_url).infer("sums", inputs).as_numpy("sums")
    np.testing.assert_allclose(answer, 3 * given.sum(axis=1, keepdims=True))


def test_each_input_has_its_own_warm_up_file(file: Path, models: Path) -> None:
    publish_file(models, file)
    (warmup,) = read_config(models / "sums").model_warmup
    files = {given.input_data_file for given in warmup.inputs.values()}
    assert files == {path.name for path in (models / "sums/warmup").iterdir()} == {"1_0_x_0", "1_1_x_0"}


@pytest.mark.parametrize("place", ["weights.bin", "sub/folder/weights.bin"])
def test_weights_keep_the_place_that_the_model_names(place: str, file: Path, models: Path, tmp_path: Path) -> None:
    outside = with_weights_outside(file, tmp_path / "outside", place)
    publish_file(models, outside)
    assert (models / "sums/1" / place).is_file()
    shutil.rmtree(outside.parent)
    assert verify_version(models / "sums", 1).problem is None
    assert plan(models / "sums").problems == ()
    (models / "sums/1" / place).write_bytes(b"other")
    assert "expected the SHA-256" in str(verify_version(models / "sums", 1).problem)
    assert "expected the SHA-256" in plan(models / "sums").problems[0].text


def test_a_file_that_no_pass_reads_is_published(models: Path, tmp_path: Path) -> None:
    branches = """
        then_branch = positive () => (float[n, 4] twice) { twice = Add(x, x) },
        else_branch = negative () => (float[n, 4] changed) { changed = Neg(x) }"""
    body = f"sum = ReduceSum<keepdims = 0>(x) larger = Greater(sum, zero) y = If <{branches}> (larger)"
    text = f"chosen (float[n, 4] x) => (float[n, 4] y) <float zero = {{0}}> {{ {body} }}"
    onnx.save(parsed(text), tmp_path / "chosen.onnx")
    publish_file(models, tmp_path / "chosen.onnx", name="chosen")
    assert verify_version(models / "chosen", 1).problem is None


def test_inputs_of_the_user_s_own_are_the_sample(models: Path, tmp_path: Path) -> None:
    """Drawn numbers have no root."""
    root, inputs = tmp_path / "root.onnx", tmp_path / "given.npz"
    onnx.save(parsed("root (float[n, 4] x) => (float[n, 4] y) { y = Sqrt(x) }"), root)
    assert error(models, "publish", str(root)).endswith("; --inputs FILE.npz gives others")
    np.savez(inputs, x=np.full((2, 4), 9, np.float32))
    ok(models, "publish", str(root), "--inputs", str(inputs))
    sample = read_version(models / "root/1").sample
    np.testing.assert_array_equal(sample.outputs["y"], np.full((2, 4), 3, np.float32))


@pytest.mark.parametrize("way", ["a manifest", "--pictures"])
def test_inputs_are_for_files_without_a_manifest(way: str, file: Path, models: Path, tmp_path: Path) -> None:
    np.savez(inputs := tmp_path / "given.npz", x=np.ones(4))
    if way == "a manifest":
        write_with_sidecars(file, ARTIFACT)
    pictures = [way] if way == "--pictures" else []
    refused = operate(models, "publish", str(file), "--inputs", str(inputs), *pictures)
    assert refused.exit_code == 2
    assert "--inputs: expected a file without a manifest, and no --pictures" in refused.output


def test_a_version_that_does_not_load_is_not_published(
    file: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_file(models, file)
    weights_by_place = "export.publishing.foreign_artifact.weights_by_place"
    monkeypatch.setattr(weights_by_place, lambda file: {})  # as if the weights were forgotten
    outside = with_weights_outside(file, tmp_path / "outside", "w.bin")
    with pytest.raises(PublishError, match="expected a file that ONNX Runtime runs"):
        publish_file(models, outside)
    assert versions(models / "sums") == [1]


def test_a_scalar_is_refused(models: Path, tmp_path: Path) -> None:
    scalar = network(tmp_path / "scalar.onnx", 3, axes=(0, 1))
    with pytest.raises(PublishError, match="sums: expected at least one axis, found none: Triton takes no scalars"):
        publish_file(models, scalar)
    assert not (models / "sums").exists()


@pytest.mark.parametrize(("kind", "use_tf32"), [(FLOAT, "0"), (HALF, "1")])
def test_only_float32_forbids_tf32(kind: int, use_tf32: str, models: Path, tmp_path: Path) -> None:
    publish_file(models, network(tmp_path / "sums.onnx", kind=kind))
    (cuda,) = read_config(models / "sums").optimization.execution_accelerators.gpu_execution_accelerator
    assert cuda.parameters["use_tf32"] == use_tf32


def test_what_the_operator_set_stays(file: Path, models: Path) -> None:
    publish_file(models, file, Serving(instances=3))
    config = read_config(models / "sums")
    config.max_batch_size = 16
    config.dynamic_batching.preferred_batch_size.append(8)
    config.model_warmup.add(name="mine", batch_size=1).CopyFrom(config.model_warmup[0])
    config.model_warmup[1].name = "mine"
    change(models / "sums", config)
    publish_file(models, file)
    found = read_config(models / "sums")
    assert (found.max_batch_size, found.instance_group, found.dynamic_batching, found.model_warmup[1]) == (
        16,
        config.instance_group,
        config.dynamic_batching,
        config.model_warmup[1],
    )
    assert found.model_warmup[0].inputs["x:0"].input_data_file == "2_0_x_0"
    assert verify_version(models / "sums", 2).problem is None


def test_lengths_run_together_only_if_that_is_proved_of_each_served_version(file: Path, models: Path) -> None:
    plain = foreign_artifact(file)
    joining = plain.with_origin(joined_lengths='{"mask": "x:0"}')
    told = []

    def tell() -> None:
        config = read_config(models / "sums")
        queue = config.dynamic_batching.default_queue_policy.max_queue_size
        told.append((config.parameters["joined_lengths"].string_value, queue))

    for artifact in (joining, joining, plain):
        publish(models, "sums", artifact)
        tell()
    serve(models / "sums", [1, 2])
    tell()
    together = ('{"mask": "x:0"}', 64)  # more may wait
    assert told == [together, together, ("", 16), together]
    assert read_version(models / "sums" / "1").manifest.origin == joining.origin


@pytest.mark.parametrize("first", ["n", 3])
def test_device_and_instances_are_served_as_asked_for(first: int | str, models: Path, tmp_path: Path) -> None:
    file = network(tmp_path / "sums.onnx", first)
    for serving in (Serving(device="cuda", instances=2, threads=1), Serving()):
        publish_file(models, file, serving)
        config = read_config(models / "sums")
        (group,) = config.instance_group
        threads = config.parameters["intra_op_thread_count"].string_value
        assert (group.kind, group.count, threads) == (pb.ModelInstanceGroup.KIND_GPU, 2, "1")
        assert config.HasField("dynamic_batching") == (first == "n"), "without batches Triton takes no queue"


def test_the_largest_request_is_as_asked_for(file: Path, models: Path, tmp_path: Path) -> None:
    publish_file(models, file, Serving(max_batch=8))
    assert read_config(models / "sums").max_batch_size == 8
    with pytest.raises(PublishError, match="fixed: expected a common free first axis for max_batch, found none"):
        publish_file(models, network(tmp_path / "fixed.onnx", 3), Serving(max_batch=8), "fixed")
    assert not (models / "fixed").exists()


def test_what_clients_could_not_call_is_refused_by_its_field(file: Path, models: Path, tmp_path: Path) -> None:
    publish_file(models, file)
    config = read_config(models / "sums")
    for other, message in (
        (network(tmp_path / "half.onnx", kind=HALF), r"expected the inputs .*11.*, found .*10"),
        (network(tmp_path / "fixed.onnx", 3), r"expected the inputs .*\[4\].*, found .*\[3, 4\]"),
    ):
        with pytest.raises(PublishError, match=message):
            publish_file(models, other)
    config.output[0].ClearField("reshape")
    change(models / "sums", config)
    with pytest.raises(PublishError, match=r"expected the outputs .*\[1\].*, found .*\[\]"):
        publish_file(models, file)
    config.output[0].reshape.SetInParent()
    config.max_batch_size = 0
    change(models / "sums", config)
    with pytest.raises(PublishError, match="expected max_batch_size 0, found 256; publish it under another --name"):
        publish_file(models, file)
    assert versions(models / "sums") == [1]


def test_a_manifest_of_another_file_is_refused(file: Path, models: Path) -> None:
    """Its proofs and rewrites are not this file's."""
    write_with_sidecars(file, foreign_artifact(file).with_origin(rewrites=("read-rows",)))
    publish(models, "sums", read_with_sidecars(file))
    shown = ok(models, "show", "sums")
    assert json.loads(shown) == json.loads((models / "sums/1/manifest.json").read_text())
    assert json.loads(shown)["rewrites"] == ["read-rows"]
    network(file, axes=(1,), first="m")
    with pytest.raises(PublishError, match=r"sums.onnx: expected the SHA-256 .*, found"):
        read_with_sidecars(file)


def test_exports_keep_their_model_to_themselves(file: Path, models: Path) -> None:
    publish(models, "sums", ARTIFACT)
    with pytest.raises(PublishError, match="expected a foreign model, found exports; publish it under another --name"):
        publish_file(models, file)


def test_a_file_that_draws_numbers_is_named(tmp_path: Path) -> None:
    body = "noise = RandomNormalLike (x)  y = Add (x, noise)"
    onnx.save(parsed(f"g (float[n, 4] x) => (float[n, 4] y) {{ {body} }}"), tmp_path / "in.onnx")
    found = error(tmp_path / "models", "publish", str(tmp_path / "in.onnx"))
    assert f"{tmp_path / 'in.onnx'}: expected equal answers to equal inputs, found others: random numbers" in found
    assert not (tmp_path / "models" / "in").exists()
