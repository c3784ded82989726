"""A tiny network, and the same digits as a folder, a tar, Parquet and idx."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from idx_files import idx_bytes
from onnx import helper
from onnx_text import parsed
from PIL import Image

from clients.bulk.app import _prepare_job
from clients.bulk.job_manifest import parts_to_do
from clients.bulk.scoring import classify_part

SEEN = np.random.default_rng(7).normal(size=(784, 10)).astype(np.float32) / 255
CONFIG = {"model": "vitbn", "channels": 1, "image_size": [28, 28], "labels": [f"digit-{each}" for each in range(10)]}


def write_network(path: Path, weights: np.ndarray = SEEN, temperature: str = "2.0", **config: object) -> Path:
    text = """linear (uint8[batch, 1, 28, 28] image) => (float[batch, 10] logits) {
        pixels = Cast <to = 1> (image)
        flat = Reshape (pixels, flat_shape)
        logits = MatMul (flat, weights)
    }"""
    model = parsed(text, flat_shape=np.array([-1, 784]), weights=weights)
    helper.set_model_props(model, {"model_config": json.dumps(CONFIG | config), "temperature": temperature})
    path.write_bytes(model.SerializeToString())
    return path


def publish(repository: Path, *versions: Path) -> Path:
    for number, file in enumerate(versions, 1):
        folder = repository / "linear" / str(number)
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(file.read_bytes())
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps({"file": "model.onnx", "files": {"model.onnx": digest}}))
    (repository / "linear/config.pbtxt").write_text('name: "linear"\n')
    return repository / "linear"


def expected(images: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Label and probability of images (n, 28, 28)."""
    logits = images.reshape(len(images), -1).astype(np.float64) @ SEEN / 2.0
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return [f"digit-{each}" for each in logits.argmax(axis=1)], shares.max(axis=1)


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    return path


def write_parquet(path: Path, column: pa.Array, row_group_size: int = 7, **more: pa.Array) -> Path:
    pq.write_table(pa.table({"image": column, **more}), path, row_group_size=row_group_size)
    return path


def write_all(folder: Path, images: np.ndarray) -> dict[str, Path]:
    """Form -> the images (n, 28, 28) in it."""
    folder.mkdir(parents=True)
    (folder / "pictures/below").mkdir(parents=True)
    encoded = [png(image) for image in images]
    for number, content in enumerate(encoded):
        (folder / "pictures" / ("below" if number >= len(images) // 2 else "") / f"{number:03}.png").write_bytes(
            content
        )
    rows = images.reshape(len(images), -1)
    (folder / "x-images-idx3-ubyte").write_bytes(idx_bytes(images))
    members = {f"{number:03}.png": content for number, content in enumerate(encoded)}
    fixed = pa.array([row.tobytes() for row in rows], pa.binary(784))
    return {
        "folder": folder / "pictures",
        "idx": folder / "x-images-idx3-ubyte",
        "tar": write_tar(folder / "x.tar", {"000.cls": b"7"} | members),
        "pixels": write_parquet(folder / "fixed.parquet", fixed),
        "lists": write_parquet(folder / "lists.parquet", pa.array(list(rows), pa.list_(pa.uint8()))),
        "encoded": write_parquet(folder / "encoded.parquet", pa.array(encoded)),
        "struct": write_parquet(folder / "struct.parquet", pa.array([{"bytes": each, "path": ""} for each in encoded])),
    }


def run(inputs, output, model, share=(0, 1), id_column="id", part_rows=None) -> pa.Table:
    job, target = _prepare_job(tuple(map(str, inputs)), str(output), Path(model), "image", id_column, part_rows)
    for part in list(parts_to_do(target, job, share)):
        classify_part(job, part)
    names = [f"part-{number:08d}.parquet" for number in sorted(target.finished_parts())]
    return pa.concat_tables(pq.read_table(target.open(name)) for name in names)
