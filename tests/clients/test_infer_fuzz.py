import gzip
import io
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from stand_in import StandIn

from clients.infer import infer

TIMES = settings(suppress_health_check=[HealthCheck.too_slow])
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def server():
    with StandIn().serving("http") as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "good.png").write_bytes(PICTURE)
    (folder / "bad.png").write_bytes(PICTURE[:50])
    (folder / "images").write_bytes(IDX)
    (folder / "labels").write_bytes(struct.pack(">II3B", 0x801, 3, 0, 1, 2))
    return folder


def encoded():
    picture = np.full((40, 40), 240, dtype=np.uint8)
    picture[8:32, 18:22] = 20
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return stream.getvalue()


PICTURE = encoded()
IDX = struct.pack(">IIII", 0x803, 3, 28, 28) + bytes(range(256)) * 9 + bytes(48)


def check(result, codes):
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    assert result.exit_code in codes
    assert "Traceback" not in result.output
    lines = result.stderr.splitlines()
    if result.exit_code in (1, 3):
        assert lines
        assert all(line.startswith(("Error: ", "Note: ")) for line in lines)
    elif result.exit_code == 2:
        assert any(line.startswith("Error: ") for line in lines)
    else:
        assert all(line.startswith(("Note: ", "accuracy: ")) for line in lines)
    return lines


FLAGS = ["--json", "--csv", "--show", "--ssl", "--help"]
VALUED = ["--model", "--url", "--protocol", "--top", "--labels", "--batch-size", "--concurrency", "--timeout"]
VALUED += ["--ssl-ca", "--ssl-cert", "--ssl-key", "--header"]
PATHS = ["good.png", "bad.png", "images", "labels", "*", "*.png", "-", ".", "missing", "", "[", "**", "\udcff"]
NUMBERS = ["0", "1", "-1", "7", "1e9", "nan", "inf", "-inf", "0x7", "99999999999999999999", "0.3", ""]
WORDS = ["http", "grpc", "net", "NAME:VALUE", ":", "a:b\nc", "é:ü", NOBODY, "[::1]:9", "a:b@c:1", "127.0.0.1:99999"]
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.one_of(st.sampled_from([*NUMBERS, *WORDS, *PATHS]), words)
pieces = st.one_of(
    st.sampled_from(PATHS).map(lambda path: [path]),
    st.sampled_from(FLAGS).map(lambda flag: [flag]),
    st.tuples(st.sampled_from(VALUED), values).map(list),
    words.map(lambda word: [word]),
)


@pytest.mark.slow
@TIMES
@given(st.lists(pieces, max_size=6), st.booleans())
def test_any_arguments(server, folder, arguments, url_first):
    url = ["--url", server.urls["http"]]
    typed = [each.replace("/", "_") for piece in arguments for each in piece]  # stay in the folder
    command = [*url, *typed] if url_first else [*typed, *url]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        check(CliRunner().invoke(infer, command, input=PICTURE), {0, 1, 2, 3})


STARTS = [PICTURE, IDX, gzip.compress(IDX), b"\0\0\x08\3", b"\x1f\x8b\x08\0", b"GIF89a", b"P5 9 9 255\n", b""]


@pytest.mark.slow
@TIMES
@given(st.data())
def test_any_content(server, folder, data):
    content = bytearray(data.draw(st.sampled_from(STARTS)))
    for _ in range(data.draw(st.integers(0, 5)) if content else 0):
        content[data.draw(st.integers(0, min(len(content), 60) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))]) + data.draw(st.binary(max_size=40))
    path = folder / "content"
    path.write_bytes(content)
    command = ["--url", server.urls["http"], str(path), str(folder / "good.png"), "-"]
    result = CliRunner().invoke(infer, command, input=content)
    lines = check(result, {0, 1})
    answered = [line.rpartition(": ")[0] for line in result.stdout.splitlines()]
    named = [line.split(": ")[1] for line in lines]
    assert str(folder / "good.png") in answered
    for name in (str(path), "-"):
        assert any(each == name or each.startswith(f"{name}[") for each in [*answered, *named])


@TIMES
@given(
    st.sampled_from([bytes, gzip.compress]),
    st.lists(st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32 - 1, 8192, 1 << 26])), min_size=3, max_size=3),
    st.integers(0, 3000),
)
def test_any_claims_of_an_idx_header(server, folder, pack, sizes, length):
    (folder / "claims").write_bytes(pack(struct.pack(">I3I", 0x803, *sizes) + b"\7" * length))
    result = CliRunner().invoke(infer, ["--url", server.urls["http"], str(folder / "claims")])
    check(result, {0, 1})
    whole = sizes[0] * sizes[1] * sizes[2] == length and length > 0
    if sizes[1:] == [28, 28]:
        assert (result.exit_code == 0) == whole
    assert len(result.stdout.splitlines()) <= length
