"""Files that try to cost memory or time."""

import json
import struct
import zipfile
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from models.networks.config import ModelConfig
from models.networks.registry import build

SMALL = ModelConfig(image_size=(8, 8), patch_size=(4, 4), dim=16, depth=1, heads=2, dim_head=8, mlp_dim=24)


def claims(path: Path, **fields: object) -> None:
    """A small network's tensors under a larger configuration."""
    config = json.dumps(asdict(SMALL) | fields)
    save_file(build(SMALL).state_dict(), path, {"config": config, "metrics": "{}"})


def metadata(path: Path, config: str | None = None, metrics: str = "{}") -> None:
    save_file(build(SMALL).state_dict(), path, {"config": config or SMALL.to_json(), "metrics": metrics})


def published() -> dict[str, torch.Tensor]:
    """A ViTBN of depth 1 under the study's names."""
    shape = {
        "cls_token": (1, 1, 64),
        "pos_embedding": (1, 17, 64),
        "to_patch_embedding.2.weight": (64, 49),
        "to_patch_embedding.2.bias": (64,),
        "transformer.layers.0.0.to_qkv.weight": (1536, 64),
        "transformer.layers.0.1.Lin1.weight": (128, 64),
        "linear_head.weight": (10, 64),
        "linear_head.bias": (10,),
    }
    return {name: torch.zeros(size) for name, size in shape.items()}


def state(path: Path, changes: dict[str, torch.Tensor]) -> None:
    torch.save(published() | changes, path)


def deflated(path: Path) -> None:
    """600 MB of zeros in 3 MB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        with archive.open("archive/data/0", "w", force_zip64=True) as member:
            for _ in range(600):
                member.write(bytes(1 << 20))


def shared(path: Path) -> None:
    """1,000 blocks that share their tensors."""
    weight = torch.zeros(1536, 64)
    state(path, {f"transformer.layers.{number}.0.to_qkv.weight": weight for number in range(1000)})


def sparse_header(path: Path) -> None:
    """A header that claims 4 GB."""
    with path.open("wb") as file:
        file.write((1 << 32).to_bytes(8, "little") + b"{")
        file.truncate(1 << 33)


def long_directory(path: Path) -> None:
    """An archive of 100,000 members, all in one place."""
    member = b"PK\x01\x02" + struct.pack("<6H3I5H2I", 20, 20, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    count, size = 100_000, 100_000 * len(member)
    end_64 = b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, count, count, size, 0)
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, size, 1)
    end = b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(member * count + end_64 + locator + end)


def sparse_archive(path: Path) -> None:
    """A state dict after 1 GB that takes no disk."""
    torch.save(published(), path)
    archive = path.read_bytes()
    with path.open("wb") as file:
        file.seek(1 << 30)
        file.write(archive)


def small_tensors(path: Path) -> None:
    """Enough of them for 500 blocks."""
    tensors = {str(number): torch.zeros(1) for number in range(3000)}
    save_file(tensors, path, {"config": json.dumps(asdict(SMALL) | {"depth": 500}), "metrics": "{}"})


FILES = {
    "depth": lambda path: claims(path, depth=10_000_000),
    "blocks": lambda path: claims(path, depth=500),
    "small tensors": small_tensors,
    "width": lambda path: claims(path, dim=1 << 40),
    "heads": lambda path: claims(path, model="vit-dtn", dim=1 << 30, heads=1 << 30),
    "picture": lambda path: claims(path, image_size=[1 << 20, 1 << 20]),
    "sines": lambda path: claims(path, image_size=[1 << 16, 1 << 16], pos_emb="pe1d"),
    "neighbours": lambda path: claims(path, model="vit-dtn", image_size=[4096, 4096]),
    "beyond 64 bits": lambda path: claims(path, mlp_dim=1 << 62),
    "beyond any bits": lambda path: claims(path, mlp_dim=1 << 200),
    "classes": lambda path: claims(path, num_classes=2_000_000_000),
    "header": sparse_header,
    "deep config": lambda path: metadata(path, config='{"labels": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "deep metrics": lambda path: metadata(path, metrics="[" * 100_000 + "]" * 100_000),
    "long number": lambda path: metadata(path, config='{"depth": 1' + "0" * 10_000 + "}"),
    "late layer": lambda path: state(path, {"transformer.layers.9999999.0.to_qkv.weight": torch.zeros(1536, 64)}),
    "long layer": lambda path: state(path, {f"transformer.layers.{'9' * 5000}.0.to_qkv.weight": torch.zeros(1)}),
    "stride 0": lambda path: state(path, {"linear_head.weight": torch.zeros(1, 64).expand(2_000_000_000, 64)}),
    "sparse tensor": lambda path: state(
        path, {"linear_head.weight": torch.sparse_coo_tensor(size=(2_000_000_000, 64), check_invariants=True)}
    ),
    "meta tensor": lambda path: state(path, {"linear_head.weight": torch.zeros(2_000_000_000, 64, device="meta")}),
    "scalar": lambda path: state(path, {"linear_head.weight": torch.tensor(1.0)}),
    "shared": shared,
    "deflated": deflated,
    "long directory": long_directory,
    "sparse archive": sparse_archive,
    "large pickle": lambda path: torch.save({str(number): number for number in range(100_000)}, path),
}
