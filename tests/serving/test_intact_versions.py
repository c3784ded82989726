import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from published_models import DAMAGES, foreign, published, truncate

from serving.intact_versions import Plan, Problem, plan


def test_with_intact_files_config_pbtxt_decides(tmp_path: Path) -> None:
    model = published(tmp_path, versions=3)
    found = plan(model)
    assert (found.versions, found.json(), found.problems) == ((2, 3), None, ())


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named_and_the_newest_intact_version_served(tmp_path: Path, name: str) -> None:
    damage, version, expected = DAMAGES[name]
    model = published(tmp_path, versions=3)
    damage(model)
    found = plan(model)
    assert found.versions == ((1, 2) if version else (2, 3))
    assert [problem.version for problem in found.problems] == [version]
    assert expected in found.problems[0].text
    config = json.loads(found.json() or "")
    assert [int(number) for number in config["version_policy"]["specific"]["versions"]] == list(found.versions or ())
    assert config["backend"] == "onnxruntime"


def serve(model: Path, versions: str) -> None:
    path = model / "config.pbtxt"
    path.write_text(path.read_text().replace("latest { num_versions: 2 }", f"specific {{ versions: [{versions}] }}"))


def damage_all(model: Path) -> None:
    for folder in model.iterdir():
        if folder.is_dir():
            (folder / "model.onnx").write_bytes(b"")


def remove_every_config(model: Path) -> None:
    for path in model.rglob("config.pbtxt"):
        path.unlink()


@pytest.mark.parametrize("damage", [damage_all, remove_every_config])
def test_without_an_intact_version_nothing_is_served(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    model = published(tmp_path, versions=2)
    damage(model)
    found = plan(model)
    assert found.versions == ()
    assert found.problems


def test_a_version_that_the_server_refuses_is_left_out(tmp_path: Path) -> None:
    found = plan(model := published(tmp_path, versions=3), refused={3: "the server refuses it"})
    assert found.versions == (1, 2)
    assert found.problems == (Problem(3, f"{model}/3: the server refuses it"),)


@pytest.mark.parametrize(
    ("count", "asked", "broken", "served"),
    [
        # The operator holds version 3 back.
        (3, "1, 2", (), (1, 2)),
        (3, "1, 2", (2,), (1,)),
        # Version 3 is bad, version 2 is served again, and version 4 is published: 3 is the last choice.
        (4, "2, 4", (), (2, 4)),
        (4, "2, 4", (4,), (1, 2)),
        (4, "2, 4", (2,), (1, 4)),
        (4, "2, 4", (1, 4), (2,)),
        (4, "2, 4", (1, 2, 4), (3,)),
    ],
)
def test_a_version_that_the_operator_took_away_is_the_last_choice(
    tmp_path: Path, count: int, asked: str, broken: tuple[int, ...], served: tuple[int, ...]
) -> None:
    model = published(tmp_path, versions=count)
    serve(model, asked)
    for number in broken:
        truncate(model / str(number) / "model.onnx")
    found = plan(model)
    assert (found.versions, found.differs) == (served, bool(broken))


def test_a_served_version_that_is_gone_is_named(tmp_path: Path) -> None:
    model = published(tmp_path, versions=2)
    serve(model, "1, 3")
    found = plan(model)
    assert found.versions == (1,)
    assert found.problems == (Problem(3, f"{model}/3: expected what config.pbtxt serves, found none"),)


def test_a_model_without_manifest_or_with_a_number_that_triton_cannot_read_is_left_to_triton(tmp_path: Path) -> None:
    model = published(tmp_path, versions=1)
    (model / "1").rename(model / "20261123170000123456")
    assert plan(model) == Plan("linear", None)
    (tmp_path / "foreign" / "1").mkdir(parents=True)
    found = plan(tmp_path / "foreign")
    assert (found.versions, found.problems) == (None, ())


def test_a_foreign_model_has_several_files_and_no_labels(tmp_path: Path) -> None:
    model = foreign(tmp_path, versions=2)
    assert plan(model) == Plan("linear", (1, 2))
    (model / "2" / "sample.npz").write_bytes(b"other")
    found = plan(model)
    assert found.versions == (1,)
    (problem,) = found.problems
    assert re.fullmatch(f"{model}/2/sample.npz: expected the SHA-256 .*, found .*", problem.text)


def test_a_broken_link_is_a_problem_of_the_model(tmp_path: Path) -> None:
    model = published(tmp_path, versions=2)
    (model / "3").symlink_to("nowhere")
    text = f"{model}/3: expected a file or a folder, found a broken link, with which Triton loads no version"
    assert plan(model) == Plan("linear", (), (Problem(None, text),))


def test_an_unreadable_folder_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read all folders
    problem = Problem(None, f"{tmp_path}: expected a readable folder, found Permission denied")
    assert plan(tmp_path) == Plan(tmp_path.name, (), (problem,))
