from pathlib import Path

import pytest

from common.repository import Damaged
from serving.parse_triton_arguments import EXIT_TIMEOUT_S, Arguments, LauncherError


def test_addresses_headers_and_models(tmp_path: Path) -> None:
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).mkdir()
    guard = "--http-restricted-api=model-repository,statistics:secret=7"
    words = ["--model-repository", str(tmp_path), "--http-port=81", "--http-address", "0.0.0.0", guard]
    options = Arguments([*words, "--disable-auto-complete-config", "--load-model", "a"])
    assert options.http_url == "127.0.0.1:81"
    assert options.headers == {"secret": "7"}
    assert (options.grpc_url, options.grpc_headers) == ("127.0.0.1:8001", {})
    key = "--grpc-restricted-protocol=model-repository:Admin=9"
    assert Arguments([*words, key]).grpc_headers == {"triton-grpc-protocol-admin": "9"}
    assert Arguments([*words, "--allow-grpc=false"]).grpc_url is None
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Damaged, match="gone: expected a file or a folder, found a broken link"):
        options.model_dirs()
    (tmp_path / "gone").unlink()
    sixth = Arguments([*words, "--http-address=ipv6:::1", "--grpc-address=[::]"])
    assert (sixth.http_url, sixth.grpc_url) == ("[::1]:81", "[::1]:8001")
    short = Arguments([*words, "--http-addr=::", "--open-control", "--load", "b"])
    assert (short.address("http"), short.models) == ("::", {"b"})
    assert list(options.model_dirs()) == ["a"]
    assert list(Arguments(words).model_dirs()) == ["a", "b"]
    assert list(Arguments([*words, "--load-model=*"]).model_dirs()) == ["a", "b"]


def test_two_services_on_one_port_are_refused(tmp_path: Path) -> None:
    options = Arguments([f"--model-repository={tmp_path}", "--http-port=81", "--metrics-port=83"])
    options.check_ports(None, 84)
    with pytest.raises(LauncherError, match=r"^expected a port of its own for each service, found .*:83 twice$"):
        options.check_ports(83)
    with pytest.raises(LauncherError, match=":8001 twice"):
        Arguments([*options.words, "--http-port=8001"]).check_ports()


def test_the_users_words_stay_but_for_those_the_supervisor_sets(tmp_path: Path) -> None:
    kept = [f"--model-repository={tmp_path}", "--log-verbose", "1", "--disable-auto-complete-config"]
    options = Arguments([*kept, "--load-model=a", "--exit-timeout-secs", "60", "--model-control-mode=explicit"])
    command = options.under_supervisor(["a", "b"], complete=False, memory="vitbn_1_")
    assert command[-len(kept) :] == kept
    assert [word for word in command if word.startswith("--load-model")] == ["--load-model=a", "--load-model=b"]
    assert [word for word in command if word == "60" or "exit-timeout" in word] == [
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}"
    ]
