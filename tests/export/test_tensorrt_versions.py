import re
from pathlib import Path

import pytest

from export.engines.tensorrt_versions import BACKEND, VersionMismatch, check_server, server_version


@pytest.mark.parametrize(
    ("files", "version"),
    [
        (["usr/lib/x86_64-linux-gnu/libnvinfer.so.10", "usr/lib/x86_64-linux-gnu/libnvinfer.so.10.4.0"], "10.4.0"),
        (
            ["usr/lib/aarch64-linux-gnu/libnvinfer.so.9.3.0", "usr/lib/aarch64-linux-gnu/libnvinfer.so.10.13.3"],
            "10.13.3",
        ),
        (["usr/local/tensorrt/targets/x86_64-linux-gnu/lib/libnvinfer.so.11.4.0"], "11.4.0"),
        (["usr/lib/x86_64-linux-gnu/libnvinfer_plugin.so.10.4.0"], None),
    ],
)
def test_the_version_in_a_container(files: list[str], version: str | None, tmp_path: Path) -> None:
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert server_version(tmp_path) is None, "no Triton, so the library says nothing of a server"
    (tmp_path / BACKEND).mkdir(parents=True)
    assert server_version(tmp_path) == version


@pytest.mark.parametrize(
    ("here", "server", "version_compatible"),
    [
        ("10.4.0", "10.4", False),
        ("10.4.0", "10.4.0.26", False),
        ("10.13.3.9.post1", "10.13.3", False),
        ("10.4.0", "10.13.3", True),
        ("11.4.0.106", "11.4.0", True),
    ],
)
def test_what_loads(here: str, server: str, version_compatible: bool) -> None:
    check_server(here, server, version_compatible)


@pytest.mark.parametrize(
    ("here", "server", "version_compatible", "message"),
    [
        ("11.4.0.106", "10.4.0", False, "expected the server's 10.4.0, found 11.4.0.106 here; .*'tensorrt==10.4.0.*'"),
        ("10.4.0", "10.13.3", False, "'tensorrt==10.13.3.*'"),
        (
            "10.13.3.9",
            "10.4",
            True,
            "expected the server's 10.4 or, to be version-compatible, an older 10, found",
        ),
        ("10.4.0", "11.4.0", True, "expected the server's 11.4.0"),
        ("10.4.0", "abc", True, "expected the server's version such as 10.4.0, found 'abc'"),
    ],
)
def test_what_does_not(here: str, server: str, version_compatible: bool, message: str) -> None:
    with pytest.raises(VersionMismatch, match=message):
        check_server(here, server, version_compatible)


def test_the_wheel_that_is_named_is_one_that_pip_finds() -> None:
    specifiers = pytest.importorskip("packaging.specifiers")
    with pytest.raises(VersionMismatch) as refused:
        check_server("11.4.0.106", "10.7.0.23", False)
    wheel = re.findall(r"'tensorrt(==\S+)'", str(refused.value))
    assert list(specifiers.SpecifierSet(wheel[0]).filter(["10.6.0", "10.7.0", "10.7.0.post1", "11.4.0.106"])) == [
        "10.7.0",
        "10.7.0.post1",
    ]
