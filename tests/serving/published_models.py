import base64
import hashlib
import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tiny_models import IMAGE, LABELS, LOGITS, ONE_INSTANCE, expected_logits, linear_model, write_model

SAMPLE = np.random.default_rng(5).integers(0, 256, (1, 1, 28, 28), dtype=np.uint8)


def published(repository: Path, versions: int, name: str = "linear", instances: str = ONE_INSTANCE) -> Path:
    """Equal `versions`; the newest two are served."""
    content = linear_model().SerializeToString()
    answer = {"logits": expected_logits(SAMPLE)[0].tolist(), "tolerance": 0.01}
    stored = {
        "image": base64.b64encode(zlib.compress(SAMPLE.tobytes())).decode(),
        "answers": {str(number): answer for number in range(1, versions + 1)},
    }
    described = {"model": "vitbn", "labels": LABELS, "image_size": [28, 28], "channels": 1}
    parameters = " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(json.dumps(value))} }} }}'  # strings in strings
        for key, value in (("probe", stored), ("model_config", described))
    )
    config = (
        f'name: "{name}" max_batch_size: 64 {IMAGE} {LOGITS} {instances} '
        f"version_policy {{ latest {{ num_versions: 2 }} }} {parameters}"
    )
    write_model(repository, name, content, config)
    model = repository / name
    manifest = {
        "file": "model.onnx",
        "files": {"model.onnx": hashlib.sha256(content).hexdigest()},
        "model_config": {"labels": LABELS},
    }
    for number in range(1, versions + 1):
        folder = model / str(number)
        folder.mkdir(exist_ok=True)
        (folder / "model.onnx").write_bytes(content)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "config.pbtxt").write_bytes((model / "config.pbtxt").read_bytes())
    return model


def with_samples(model: Path) -> Path:
    """Each version has its sample beside it, as the exporter writes it."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{"in:image": SAMPLE, "out:logits": expected_logits(SAMPLE)})
    for folder in (path for path in model.iterdir() if path.is_dir()):
        (folder / "sample.npz").write_bytes(buffer.getvalue())
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["sample.npz"] = hashlib.sha256(buffer.getvalue()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps({**manifest, "sample_tolerance": {"logits": 1e-4}}))
    return model


def foreign(repository: Path, versions: int) -> Path:
    """As any ONNX file is published."""
    model = published(repository, versions)
    (model / "labels.txt").unlink()
    for number in range(1, versions + 1):
        files = [model / str(number) / name for name in ("model.onnx", "sample.npz")]
        files[1].write_bytes(b"sample")
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        manifest = {"file": files[0].name, "files": digests}
        (model / str(number) / "manifest.json").write_text(json.dumps(manifest))
    return model


def newest(model: Path) -> Path:
    return model / str(max(int(path.name) for path in model.iterdir() if path.is_dir()))


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# of three versions: name -> (damage, the bad version or None, a piece of the reason)
DAMAGES: dict[str, tuple[Callable[[Path], object], int | None, str]] = {
    "truncated": (lambda model: truncate(newest(model) / "model.onnx"), 3, "expected the SHA-256"),
    "empty": (lambda model: (newest(model) / "model.onnx").write_bytes(b""), 3, "expected the SHA-256"),
    "missing": (
        lambda model: (newest(model) / "model.onnx").unlink(),
        3,
        "expected the model, found No such file",
    ),
    "bit flip": (lambda model: flip_a_bit(newest(model) / "model.onnx"), 3, "expected the SHA-256"),
    "manifest broken": (lambda model: truncate(newest(model) / "manifest.json"), 3, "expected the manifest"),
    "manifest nested": (
        lambda model: (newest(model) / "manifest.json").write_text("[" * 200_000),
        3,
        "expected the manifest of an export, found maximum recursion depth exceeded",
    ),
    "config truncated": (lambda model: truncate(model / "config.pbtxt"), None, "expected the configuration"),
    "config empty": (lambda model: (model / "config.pbtxt").write_text(""), None, "expected name 'linear'"),
    "config unknown field": (
        lambda model: (model / "config.pbtxt").write_text((newest(model) / "config.pbtxt").read_text() + " colour: 1"),
        None,
        'no field named "colour"',
    ),
    "labels missing": (lambda model: (model / "labels.txt").unlink(), None, "labels.txt: expected 10 labels"),
    "labels of others": (
        lambda model: (model / "labels.txt").write_text("\n".join("abcdefghij")),
        None,
        "labels.txt: expected 10 labels, found 10 or others",
    ),
}
