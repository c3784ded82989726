import gzip
import io
import json
import os
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from idx_files import idx_bytes
from infer_command import ask
from PIL import Image
from stand_in import LABELS, StandIn, expected_logits

from clients.images import paths as module
from clients.images import picture_source
from clients.images.paths import expand
from clients.images.picture_source import Pictures
from clients.preprocess import to_model_input

NOISE = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)


@pytest.fixture(scope="module")
def server():
    with StandIn().serving("http") as stand_in:
        yield stand_in


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return partial(ask, server)


@pytest.fixture
def draw(digit, tmp_path):

    def draw(name, size=0):
        side = 140 + 17 * size
        picture = Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, "PNG")
        return label(to_model_input(picture))

    return draw


def label(image):
    return LABELS[expected_logits(image[None]).argmax()]


def names(lines):
    return [line.rpartition(":")[0] for line in lines]


def test_a_folder(run, draw, tmp_path):
    for name in ("b.png", "a.JPG", "c/d.tiff", "a/e.png", ".hidden.png", ".git/f.png"):
        draw(name)
    (tmp_path / "notes.txt").write_text("seven")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert run(".") == (
        0,
        [
            f"{name}: {draw('b.png')} ({share(tmp_path / 'b.png')} %)"
            for name in ("./a.JPG", "./b.png", "./a/e.png", "./c/d.tiff")
        ],
        ["Note: .: files left out because their suffix is not an image's: 1"],
    )


def share(path):
    with Image.open(path) as picture:
        logits = expected_logits(to_model_input(picture)[None])[0].astype(float)
    powers = np.exp(logits - logits.max())
    return f"{100 * powers.max() / powers.sum():.1f}"


def test_paths_are_answered_in_their_order(run, draw):
    labels = {f"{name}.png": draw(f"{name}.png", size) for size, name in enumerate("zyxw")}
    order = ["y.png", "w.png", "z.png", "y.png", "x.png"]
    code, lines, errors = run(*order, "--batch-size", 2, "--concurrency", 3)
    assert (code, errors) == (0, [])
    assert [line.partition(" (")[0] for line in lines] == [f"{name}: {labels[name]}" for name in order]
    assert len({*labels.values()}) > 1


def test_patterns_are_expanded(run, draw):
    for name in ("one/b.png", "one/a.png", "two/c.png", "[1].png", "1.png", "dir.png/d.png"):
        draw(name)
    assert names(run("*/*.png")[1]) == ["dir.png/d.png", "one/a.png", "one/b.png", "two/c.png"]
    assert names(run("**/c.png", "o*")[1]) == ["two/c.png", "one/a.png", "one/b.png"]
    assert names(run("[1].png")[1]) == ["[1].png"]  # a file's own name comes first
    assert names(run("*.png")[1]) == ["1.png", "[1].png", "dir.png/d.png"]


def test_each_file_comes_once_per_pattern(run, draw, tmp_path):
    for name in ("scans/a.png", "scans/sub/b.png", "scans/sub-2/c.png", "scans/sub/deep/d.png"):
        draw(name)
    every = ["scans/a.png", "scans/sub/b.png", "scans/sub/deep/d.png", "scans/sub-2/c.png"]
    assert sorted(names(run("scans/**")[1])) == sorted(every)
    assert sorted(names(run("scans/**/*")[1])) == sorted(every)
    assert sorted(names(run("**/s*")[1])) == sorted(every)
    assert sorted(names(run("scans/**", "scans/a*")[1])) == sorted([*every, "scans/a.png"])
    (tmp_path / "scans/images").write_bytes(idx_bytes(NOISE[:1]))  # without a suffix, so only as a match
    assert "scans/images[0]" in names(run("scans/**")[1])


LONG = "x" * 300  # Python 3.11 raises for it as for a locked folder, which root may read


def test_what_the_system_refuses_is_named_and_the_rest_answered(run, draw, tmp_path):
    draw("scans/b.png")
    (tmp_path / "scans/a.png").symlink_to(LONG)
    assert Pictures([LONG, "scans"], print, print).count() == 3
    code, lines, errors = run(LONG, f"{LONG}.png", "scans")
    assert (code, names(lines)) == (1, ["scans/b.png"])
    assert errors == [
        f"Error: {name}: expected a picture, found File name too long" for name in (LONG, f"{LONG}.png", "scans/a.png")
    ]
    with Path("/proc/self/mem").open("rb") as refused:
        assert run("-", given=refused) == (1, [], ["Error: -: expected a picture, found Input/output error"])


def test_what_has_no_images_is_named(run, draw, tmp_path):
    draw("good.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/notes.txt").write_text("seven")
    code, lines, errors = run("empty", "*.gif", "texts", "good.png")
    assert (code, names(lines)) == (1, ["good.png"])
    assert errors == [
        "Error: empty: expected files with an image's suffix, found none (others: 0)",
        "Error: *.gif: expected files that match, found none",
        "Error: texts: expected files with an image's suffix, found none (others: 1)",
    ]


def test_unreadable_pictures_are_named_and_the_others_answered(run, draw, tmp_path):
    for name in ("1.png", "3.png", "5.png"):
        draw(name)
    (tmp_path / "2.png").write_bytes((tmp_path / "1.png").read_bytes()[:90])
    Image.new("L", (60, 60), 255).save(tmp_path / "4.png")
    code, lines, errors = run(*(f"{number}.png" for number in range(1, 7)), "--batch-size", 1)
    assert (code, names(lines)) == (1, ["1.png", "3.png", "5.png"])
    assert [error.split(": ")[1] for error in errors] == ["2.png", "4.png", "6.png"]
    assert "no ink found" in errors[1]
    assert "No such file or directory" in errors[2]


def test_a_folder_larger_than_can_be_sorted(run, draw, monkeypatch, tmp_path):
    for number in range(9):
        draw(f"many/{number}.png")
    ignored = lambda path, what: None  # noqa: E731
    assert list(expand(["many"], ignored, ignored)) == [f"many/{number}.png" for number in range(9)]
    monkeypatch.setattr(module, "SORTED", 4)
    assert sorted(expand(["many"], ignored, ignored)) == [f"many/{number}.png" for number in range(9)]


def test_standard_input(run, draw, tmp_path):
    answer = f"-: {draw('digit.png')} ({share(tmp_path / 'digit.png')} %)"
    content = (tmp_path / "digit.png").read_bytes()
    assert run("-", given=content) == (0, [answer], [])
    code, lines, errors = run("-", "-", given=content)
    assert (code, lines) == (1, [answer])
    assert errors == ["Error: -: expected a picture, found an empty file"]
    white = io.BytesIO()
    Image.new("L", (60, 60), 255).save(white, "PNG")
    assert run("-", given=white.getvalue())[2][0].startswith("Error: -: no ink found")


@pytest.mark.parametrize("form", ["TIFF", "GIF", "PNG", "WEBP"])
def test_further_pages_and_frames_are_not_passed_over_silently(form, run, digit, tmp_path):
    first, other = Image.fromarray(digit), Image.new("L", digit.shape[::-1], 255)
    lossless = {"lossless": True} if form == "WEBP" else {}
    first.save(tmp_path / "scan", form, save_all=True, append_images=[other, other], **lossless)
    code, lines, errors = run("scan")
    assert (code, lines) == (0, [f"scan: {label(to_model_input(first))} ({share(tmp_path / 'scan')} %)"])
    assert errors == ["Note: scan: several pages or frames; the first is read"]
    assert run("-", given=(tmp_path / "scan").read_bytes())[2] == [errors[0].replace("scan", "-")]
    first.save(tmp_path / "scan", form, **lossless)
    assert run("scan")[2] == []


@pytest.mark.parametrize("writer", ["none", "silent", "quick"])
def test_a_pipe_is_read_and_one_that_gives_nothing_is_refused(writer, run, draw, tmp_path, monkeypatch):
    monkeypatch.setattr(picture_source, "SILENT_S", 0.2)
    draw("digit.png")
    os.mkfifo(tmp_path / "pipe")
    silent = os.open(tmp_path / "pipe", os.O_RDWR) if writer == "silent" else None
    if writer == "quick":
        monkeypatch.setattr(picture_source, "SILENT_S", 60.0)
        content = (tmp_path / "digit.png").read_bytes()
        writing = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
        writing.start()
    code, lines, errors = run("pipe", "digit.png")
    if silent is not None:
        os.close(silent)
    if writer == "quick":
        writing.join()
        assert (code, names(lines), errors) == (0, ["pipe", "digit.png"], [])
        return
    assert (code, names(lines)) == (1, ["digit.png"])
    assert errors == ["Error: pipe: expected a picture, found a pipe that gave nothing for 0.2 s"]


def test_an_endless_file_is_refused(run):
    assert run("/dev/zero") == (1, [], ["Error: /dev/zero: expected a picture of at most 134217728 bytes, found more"])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_idx_file_goes_to_the_model_unchanged(run, tmp_path, pack):
    (tmp_path / "images").write_bytes(pack(idx_bytes(NOISE)))  # blank, if it were prepared
    code, lines, errors = run("images", "--json", "--batch-size", 2)
    answers = [json.loads(line) for line in lines]
    assert (code, errors) == (0, [])
    assert [answer["file"] for answer in answers] == [f"images[{number}]" for number in range(9)]
    assert [answer["label"] for answer in answers] == [label(image[None]) for image in NOISE]


def test_an_idx_file_of_another_size_is_preprocessed(run, digit, tmp_path):
    large = np.stack([np.asarray(Image.fromarray(each).resize((56, 56))) for each in (digit, digit.T, digit * 0)])
    (tmp_path / "images").write_bytes(idx_bytes(large))
    code, lines, errors = run("images")
    assert code == 1
    assert [line[:13] for line in lines] == [
        f"images[{number}]: {label(to_model_input(Image.fromarray(large[number])))} " for number in (0, 1)
    ]
    assert [error[:32] for error in errors] == ["Error: images[2]: no ink found: "]


def test_labels_give_the_accuracy(run, tmp_path):
    truths = np.array([LABELS.index(label(image[None])) for image in NOISE], dtype=np.uint8)
    truths[[2, 5]] = (truths[[2, 5]] + 1) % 3
    (tmp_path / "images").write_bytes(gzip.compress(idx_bytes(NOISE)))
    (tmp_path / "labels").write_bytes(gzip.compress(idx_bytes(truths)))
    code, lines, errors = run("images", "--labels", "labels")
    assert (code, len(lines), lines[-1], errors) == (0, 10, "accuracy: 77.78 % (7 of 9)", [])
    for form in ("--json", "--csv"):
        assert run("images", "--labels", "labels", form)[2] == ["accuracy: 77.78 % (7 of 9)"]


def test_labels_that_do_not_belong_to_the_images(run, draw, tmp_path):
    draw("digit.png")
    (tmp_path / "images").write_bytes(idx_bytes(NOISE))
    (tmp_path / "labels").write_bytes(idx_bytes(np.zeros(8, dtype=np.uint8)))
    (tmp_path / "short").write_bytes(idx_bytes(np.zeros(9, dtype=np.uint8))[:-1])
    for arguments, message in [
        (["images", "--labels", "labels"], "--labels labels: expected 9 labels, found 8"),
        (["images", "--labels", "short"], "expected 9 items of 1 bytes, found 8"),
        (["images", "--labels", "digit.png"], "expected the idx magic 00000801"),
        (["digit.png", "--labels", "labels"], "expected PATH to be one idx file"),
        (["images", "images", "--labels", "labels"], "expected PATH to be one idx file"),
    ]:
        code, lines, errors = run(*arguments)
        assert (code, lines) == (2, [])
        assert message in errors[-1]


def test_damaged_idx_files_are_answered_as_far_as_they_go(run, tmp_path):
    (tmp_path / "short").write_bytes(idx_bytes(NOISE)[:-1])
    (tmp_path / "long").write_bytes(idx_bytes(NOISE) + b"x")
    (tmp_path / "none").write_bytes(idx_bytes(NOISE[:0]))
    (tmp_path / "floats").write_bytes(b"\0\0\x0d\3" + bytes(100))
    code, lines, errors = run("short", "floats", "long", "none")
    assert code == 1
    assert names(lines) == [*(f"short[{n}]" for n in range(8)), *(f"long[{n}]" for n in range(9))]
    assert [error.split(": expected")[0] for error in errors] == [
        f"Error: {name}" for name in ("short", "floats", "long", "none")
    ]


def test_odd_names_stay_on_one_line(run, draw, tmp_path):
    odd = ["a\nb.png", "\x1b[31mred.png", os.fsdecode(b"latin\xe9.png"), "größe 二.png", "-dash.png"]
    for name in odd:
        draw(name)
    code, lines, errors = run("--", *odd, "new\nline.png")
    assert code == 1
    assert names(lines) == ["a\\nb.png", "\\x1b[31mred.png", "latin\\udce9.png", "größe 二.png", "-dash.png"]
    assert errors == ["Error: new\\nline.png: expected a picture, found No such file or directory"]
    assert [json.loads(line)["file"] for line in run("--json", "--", *odd)[1]] == odd
    assert "\x1b" not in "".join(run("--csv", "--", *odd)[1])


def test_an_image_without_ink_in_an_idx_file_is_blank(run, digit, tmp_path):
    (tmp_path / "images").write_bytes(idx_bytes(np.stack([digit * 0, digit, digit * 0 + 20])))
    code, lines, errors = run("images")
    reason = "no ink found: expected a level above 20 of 255 somewhere, found at most"
    assert (code, names(lines)) == (1, ["images[1]"])
    assert errors == [f"Error: images[{number}]: {reason} {most}" for number, most in ((0, 0), (2, 20))]
