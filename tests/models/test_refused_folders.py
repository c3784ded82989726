"""Folders of pictures that are refused: a shell's lines beside the striped folder cloth/, what is read, the reason."""

import subprocess

import pytest
from striped_folder import striped_folder

from models.data import DataError
from models.data.folder import load_folder

SUFFIXES = "for each in cloth/stripes/*.png; do mv $each ${{each%.png}}{}; done"
COPIES = "mkdir other; for part in {}; do cp -r cloth other/$part; done"
FLAT = "mkdir other; cp -r cloth/stripes other/{}; cp -r cloth/étoffe other/{}"
BELOW = 'for part in {}; do for each in cloth/*; do mkdir -p "x/$each"; cp -r "$each" "x/$each/$part"; done; done'
NO_PARTS = "expected train, and test or val, .* found {}"
PARTS = (("train", "dev"), ("train", "holdout"), ("training_set", "test_set"), ("trn", "tst"), ("学習", "テスト"))
REFUSED = [
    ("truncate -s 60 cloth/stripes/00.png", "cloth", r"stripes/00.png: expected a picture, found"),
    (
        "truncate -s 60 cloth/stripes/00.png; truncate -s 0 cloth/étoffe/07.png",
        "cloth",
        r"found 2 files that are none: .*stripes/00\.png: .*; .*étoffe/07\.png: ",
    ),
    ("mkdir cloth/zebra", "cloth", "zebra: expected pictures"),
    ("rm cloth/stripes/{0[1-9],1?}.png", "cloth", "stripes: expected two pictures or more, found 1"),
    (
        "rm -r cloth/stripes cloth/étoffe",
        "cloth",
        "cloth: expected a sub-folder of pictures for each of two classes or more, found 1",
    ),
    (
        "mv cloth grey\xa0cloth",
        "grey\xa0cloth",
        r"expected a path of printable characters, found .*grey\\xa0cloth",
    ),
    (
        "mkdir cloth/linked; ln -s ../stripes cloth/linked/more",
        "cloth",
        r"linked: expected pictures \(.*\), found only links to folders$",
    ),
    ("mv cloth/stripes 'cloth/ '", "cloth", "expected sub-folders with printable names, found ' '; rename it"),
    ("rm -r cloth/[sé]*", "cloth/cross stripes", r"two classes or more, found 0 and 21 files, such as 00\.png$"),
    (
        SUFFIXES.format(".heic"),
        "cloth",
        r"stripes: expected pictures \(.*\), found 21 files \(\.heic 20, \.txt 1\)$",
    ),
    (SUFFIXES.format(""), "cloth", r"found 21 files \(\.txt 1, no suffix 20\)$"),
    (
        f"{COPIES.format('train test')}; rm -r other/test/stripes",
        "other",
        r"other/test: expected the classes of .*train, found a difference in stripes",
    ),
    (
        f"{COPIES.format('train test')}; mv other/test/étoffe other/test/e\u0301toffe",
        "other",
        r"found a difference in 'e\\u0301toffe', '\\xe9toffe'$",
    ),
    # Else the classes would be "test" and "train", and the real classes sub-folders of them.
    (COPIES.format("Train Test"), "other", f"{NO_PARTS.format('Test, Train')}; or name a folder"),
    (
        f"{COPIES.format('train')}; mkdir other/test; cp cloth/stripes/00.png other/test",
        "other",
        "expected train, and test or val",
    ),
    *(
        (COPIES.format(" ".join(parts)) + less, "other", f"{NO_PARTS.format(', '.join(sorted(parts)))};")
        for parts in PARTS
        for less in ("", f"; rm -r 'other/{parts[1]}/cross stripes'")
    ),
    *(
        (
            FLAT.format(*parts),
            "other",
            f"each with the same classes' sub-folders, found .*{parts[0]}.*; or rename a class",
        )
        for parts in (("train", "test"), ("train", "val"), ("Train", "Test"))
    ),
    (
        "mkdir -p a/b; mv cloth a/b",
        "a",
        r"a: expected .* of two classes or more, found 1; name .*a/b/cloth, which holds 3 folders",
    ),
    (BELOW.format("front back"), "x/cloth", "; if these are the classes, move their pictures out of the sub-folders$"),
    # Else its own test pictures would be trained on.
    (
        BELOW.format("train test"),
        "x/cloth",
        r"cloth: expected parts above the classes, as train/cross stripes, found cross stripes/train; or name .*es$",
    ),
    (
        f"{COPIES.format('check')}; mv other/check cloth",
        "cloth",
        "expected classes alone, found check with sub-folders of its neighbours' names, cross stripes, ",
    ),
]
HELD_OUT = [
    *((COPIES.format("train val test"), "other", n, f"no --hold-out, .* pictures apart, found {n}") for n in (0, 9)),
    *(("", "cloth", n, f"hold out 3 to 45 of 48 pictures, of 3 classes, found {n}") for n in (2, 46)),
]


@pytest.mark.parametrize(
    ("lines", "place", "held_out", "said"), [*((*row[:2], None, row[2]) for row in REFUSED), *HELD_OUT]
)
def test_a_folder_is_refused_with_the_reason(tmp_path, lines, place, held_out, said):
    striped_folder(tmp_path / "cloth")
    subprocess.run(["bash", "-ec", lines], cwd=tmp_path, check=True)
    with pytest.raises(DataError, match=said):
        load_folder(tmp_path / place, held_out=held_out)


def test_pictures_larger_than_the_memory_are_refused_before_they_are_read(tmp_path):
    striped_folder(tmp_path / "cloth")
    with pytest.raises(DataError, match=r"cloth: expected pictures that fit the memory, found \d+ of 1000000x1000000 "):
        load_folder(tmp_path / "cloth", (1_000_000, 1_000_000))
