import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from idx_files import idx_bytes
from infer_command import run
from PIL import Image
from stand_in import StandIn


@pytest.fixture(scope="module")
def server():
    with StandIn().serving("http") as stand_in:
        yield stand_in


def picture():
    sheet = np.full((40, 40), 240, dtype=np.uint8)
    sheet[8:32, 18:22] = 20
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "PNG")
    return stream.getvalue()


PICTURE = picture()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "good.png").write_bytes(PICTURE)
    (folder / "bad.png").write_bytes(PICTURE[:50])
    (folder / "images").write_bytes(idx_bytes(np.resize(np.arange(256, dtype=np.uint8), (3, 28, 28))))
    (folder / "labels").write_bytes(idx_bytes(np.arange(3, dtype=np.uint8)))
    return folder


FLAGS = ["--json", "--csv", "--ssl", "--help"]
VALUED = ["--model", "--url", "--protocol", "--top", "--labels", "--batch-size", "--concurrency", "--timeout"]
VALUED += ["--ssl-ca", "--ssl-cert", "--ssl-key", "--header"]
PATHS = ["good.png", "bad.png", "images", "labels", "*", "*.png", "-", ".", "missing", "", "[", "**", "\udcff"]
NUMBERS = ["0", "1", "-1", "7", "1e9", "nan", "inf", "-inf", "0x7", "99999999999999999999", "0.3", ""]
WORDS = [
    "http",
    "grpc",
    "net",
    "NAME:VALUE",
    ":",
    "a:b\nc",
    "é:ü",
    "127.0.0.1:1",
    "[::1]:9",
    "a:b@c:1",
    "127.0.0.1:99999",
]
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.one_of(st.sampled_from([*NUMBERS, *WORDS, *PATHS]), words)
pieces = st.one_of(
    st.sampled_from(PATHS).map(lambda path: [path]),
    st.sampled_from(FLAGS).map(lambda flag: [flag]),
    st.tuples(st.sampled_from(VALUED), values).map(list),
    words.map(lambda word: [word]),
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(pieces, max_size=6), st.booleans())
def test_any_arguments(server, folder, arguments, url_first):
    url = ["--url", server.url]
    typed = [each.replace("/", "_") for piece in arguments for each in piece]  # stay in the folder
    command = [*url, *typed] if url_first else [*typed, *url]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, lines, errors = run(*command, given=PICTURE)
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in "".join([*lines, *errors])
    if code == 2:
        assert any(line.startswith("Error: ") for line in errors)
    else:
        assert errors or code == 0
        assert all(line.startswith(("Error: ", "Note: ") if code else ("Note: ", "accuracy: ")) for line in errors)
