"""What `infer`, `web` and `bulk` refuse before they ask a server: an exit code, one line, and no file written."""

from pathlib import Path

import click
import numpy as np
import pytest
from idx_files import idx_bytes
from refusals import Row, check_refused

from clients.bulk.app import bulk
from clients.infer import infer
from clients.web.app import web

DIGIT = Path(__file__).resolve().parents[2] / "digit.png"
URLS = ("http://a:8000", "127.0.0.1", "", "host:port", "127.0.0.1:99999", "::1:8000", "[::1]", "[a]:80")
SHARE = "'--share': expected INDEX/COUNT with INDEX below COUNT, found"
RAY = "expected --processes with --engine processes, found ray, which takes every core"
OF_PROXY = "--behind-proxy: expected a name without scheme and port, found"
ROWS: list[Row] = [
    *((infer, f"--url '{url}'", 3, f"HOST:PORT, found {url!r}") for url in URLS),
    (infer, "--json --csv", 2, "Error: expected at most one of --json, --csv and --show"),
    (infer, "--timeout nan", 2, "Error: timeout_s: expected seconds above 0, found nan"),
    (infer, "--header Key", 2, "Error: header: expected NAME:VALUE, found 'Key'"),
    (infer, "--header 'Key: a\nb'", 2, r"Error: header Key: expected printable ASCII, found 'a\nb'"),
    (infer, "--ssl-cert text", 2, "TLS: expected a client certificate and its key, found one without the other"),
    (infer, "--labels text", 2, "Error: --labels: expected PATH to be one idx file of images"),
    (infer, "--split --labels text", 2, "Error: expected at most one of --split and --labels"),
    *(
        (infer, f"--reject-below {share}", 2, f"expected above 0 and at most 1, or auto, found '{share}'")
        for share in ("0", "1.1", "nan", "automatic")
    ),
    *((web, f"--behind-proxy '{name}'", 2, f"{OF_PROXY} {name!r}") for name in ("https://a.b", "a.b:8000", "", " ")),
    *((bulk, f"--share {share}", 2, f"{SHARE} '{share}'") for share in ("1", "2/2", "-1/2", "a/b")),
    (bulk, "--engine ray --processes 2", 2, f"Error: {RAY}"),
    (bulk, "--output memory://a", 2, "output: expected a folder or storage that processes share, found memory://a"),
    (bulk, "--model text", 1, "expected a classifier of the exporter"),
]
USUAL = {infer: "digit.png", web: "", bulk: "images --output out --model images"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "digit.png").symlink_to(DIGIT)
    (folder / "text").write_text("text")
    (folder / "images").write_bytes(idx_bytes(np.zeros((1, 28, 28), np.uint8)))
    return folder


@pytest.mark.parametrize(("command", "words", "code", "said"), ROWS)
def test_a_refusal_is_a_line_and_writes_nothing(
    place: Path, command: click.Command, words: str, code: int, said: str
) -> None:
    check_refused(place, command, f"{USUAL[command]} {words}", code, said)
