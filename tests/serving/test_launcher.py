import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from published_models import published

from benchmarks.load.published_candidates import shared_memory_arguments
from serving import launcher
from serving.launcher import LauncherError
from serving.parse_triton_arguments import PORTS, Arguments
from serving.ports import free_ports


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prints its arguments; on PATH behind another environment's console script."""
    ours = write_program(
        tmp_path / "venv/bin/tritonserver", "#!/opt/venv/bin/python\nfrom serving.launcher import main\n"
    )
    server = write_program(tmp_path / "native/tritonserver", '#!/bin/sh\nprintf "<%s>" "$@"\n')
    monkeypatch.setenv("PATH", os.pathsep.join([str(ours.parent), str(server.parent), os.environ["PATH"]]))
    return server


@pytest.mark.parametrize(
    ("module", "last"),
    [("serving.launcher", "--help"), ("serving.serve", "--exit-on-error")],
    ids=["launcher", "serve"],
)
def test_native_server_gets_the_arguments_untouched(native: Path, module: str, last: str) -> None:
    arguments = ["--model-repository", "a b", "--http-port=1", "$HOME", last]
    result = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "".join(f"<{argument}>" for argument in arguments)


@pytest.mark.parametrize(
    ("told", "expected"),
    [("  --allow-client-shm <boolean>\n\tLets clients", ["--allow-client-shm=true"]), ("  --allow-grpc <boolean>", [])],
    ids=["26.05 and later", "before"],
)
def test_clients_may_share_memory_where_the_server_has_a_flag_for_it(
    told: str, expected: list[str], tmp_path: Path
) -> None:
    server = write_program(tmp_path / "native/tritonserver", f"#!/bin/sh\necho '{told}' >&2\nexit 1\n")
    assert shared_memory_arguments(str(server.parent)) == expected
    assert shared_memory_arguments(str(tmp_path)) == ["--open-control"], "our launcher's server wants a key"


def test_a_machine_that_cannot_run_the_server_is_told_why(tmp_path: Path) -> None:
    launcher.check_numpy("1.26.4")
    message = "stub: error while loading shared libraries: libpython3.11.so.1.0"
    stub = write_program(tmp_path / "bin/stub", f"#!/bin/sh\necho {message} >&2\nexit 127\n")
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "vitbn"
    for check, said in (
        (lambda: launcher.check_numpy("2.3.1"), r"needs numpy below 2, found numpy 2\.3\.1: pip install"),
        (
            lambda: launcher.backend_files(launcher.pytriton_folder(), "3.99"),
            r"supports Python .*3\.11.*, found Python 3\.99",
        ),
        (lambda: launcher.check_stub(stub, os.environ), f"cannot run: {message}.*apt-get install libpython3"),
        (lambda: launcher.assemble_backends({}, cache), f"cannot assemble the backends in {cache}: "),
    ):
        with pytest.raises(LauncherError, match=said):
            check()


def test_missing_pytriton_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(launcher, "native_server", lambda path: None)
    monkeypatch.setattr("sys.argv", ["tritonserver", "--help"])
    with pytest.raises(SystemExit) as exit_info:
        launcher.main()
    assert str(exit_info.value).startswith("tritonserver: no native tritonserver found, and nvidia-pytriton is not")
    assert "\n" not in str(exit_info.value)


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_a_taken_port_is_one_line_before_any_model_loads(service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True)) | {service: port}
        arguments = ["--model-repository=.", *(f"--{each}-port={number}" for each, number in ports.items())]
        with pytest.raises(
            LauncherError, match=f"^127.0.0.1:{port}: expected a free port, found Address already in use; .*--http-port"
        ):
            launcher.check_ports(Arguments(arguments))
        for unaffected in (f"--allow-{service}=false", f"--reuse-{service}-port=true"):
            launcher.check_ports(Arguments([*arguments, unaffected]))
    launcher.check_ports(Arguments(arguments))
    with pytest.raises(LauncherError, match=r"^192\.0\.2\.1:.*, found Cannot assign requested address; "):
        launcher.check_ports(Arguments([*arguments, "--http-address=192.0.2.1"]))


def test_backends_are_assembled_once_and_completely(tmp_path: Path) -> None:
    files = launcher.backend_files(launcher.pytriton_folder())
    folder = launcher.assemble_backends(files, tmp_path)
    made = folder.stat().st_mtime_ns
    assert launcher.assemble_backends(files, tmp_path) == folder
    assert folder.stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [folder]
    assert all((folder / engine / "model.py").is_file() for engine in launcher.ENGINES)
    for name, source in files.items():
        assert (folder / name).is_dir() or (folder / name).read_bytes() == source.read_bytes()


def test_environment_puts_this_python_first() -> None:
    environment = launcher.server_environment(Path("/site/pytriton"), {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/x"})
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert environment["LD_LIBRARY_PATH"] == f"/site/nvidia_pytriton.libs:{sys.base_prefix}/lib:/x"
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.parametrize("name", ["a b", "a;b", "$(a)", "it's"])
def test_only_repositories_a_shell_would_split_get_another_name(tmp_path: Path, name: str) -> None:
    odd = tmp_path / name
    odd.mkdir()
    arguments = [f"--model-repository={odd}", "--model-store", str(odd), f"--log-file={odd}", "--id", "a b"]
    first, second, *others = launcher.shell_safe_words(Arguments(arguments))
    assert others == arguments[3:]
    for renamed in (each.removeprefix("--model-repository=") for each in (first, second)):
        assert renamed.startswith(f"/proc/{os.getpid()}/fd/")
        assert Path(renamed).samefile(odd)
        os.close(int(Path(renamed).name))


def test_ordinary_repositories_keep_their_name(tmp_path: Path) -> None:
    (odd := tmp_path / "a=b").mkdir()
    folders = [str(odd), "s3://a b/c", "triton_repo"]
    arguments = Arguments(
        [f"--model-repository={odd}", "--model-store", *folders[1:2], "--model-repository", "triton_repo"]
    )
    assert launcher.shell_safe_words(arguments) == [f"--model-repository={folder}" for folder in folders]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model-repository", "models"], ["--model-control-mode=explicit", "--load-model=*"]),
        (["--load-model", "vitbn"], ["--model-control-mode=explicit"]),
        (["--model-control-mode=poll"], []),
    ],
)
def test_the_user_chooses_mode_and_models(arguments: list[str], expected: list[str]) -> None:
    assert launcher.control_defaults(Arguments(arguments)) == expected


def test_a_folder_that_may_not_be_read_is_skipped() -> None:
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        (folder := Path(name)).chmod(0o755)
        native = write_program(folder / "native/tritonserver", "#!/bin/sh\n")
        native.parent.chmod(0o755)
        (folder / "closed/bin").mkdir(parents=True)
        (folder / "closed").chmod(0o000)
        try:
            if before == 0:  # root may read all folders
                os.seteuid(65534)
            with pytest.raises(PermissionError):
                (folder / "closed/bin/tritonserver").stat()
            assert launcher.native_server(os.pathsep.join([f"{folder}/closed/bin", str(native.parent)])) == native
        finally:
            os.seteuid(before)
            (folder / "closed").chmod(0o755)


def test_without_a_home_the_cache_is_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"vitbn-{os.getuid()}"
    for environment in ({}, {"HOME": "/proc"}, {"HOME": ""}, {"HOME": "/proc", "XDG_CACHE_HOME": ""}):
        assert launcher.cache_folder(environment) == own
    assert own.stat().st_mode & 0o777 == 0o700
    assert launcher.cache_folder({"HOME": "/proc", "XDG_CACHE_HOME": "/cache"}) == Path("/cache/vitbn")
    assert launcher.cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "vitbn"
    own.chmod(0o777)
    with pytest.raises(LauncherError, match=f"^{own}: expected a folder of this user alone, .*XDG_CACHE_HOME"):
        launcher.cache_folder({})
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(LauncherError, match="expected a folder of this user alone"):
        launcher.cache_folder({})


@pytest.mark.parametrize("name", ["a b", "a;b", "$(a)", "it's", "*"])
def test_a_models_name_that_a_shell_would_split_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "modèle-1_a.b").mkdir()
    with pytest.raises(LauncherError, match=f"^{re.escape(str(tmp_path / name))}: expected a name without blanks"):
        launcher.check_repositories(Arguments([f"--model-repository={tmp_path}"]))
    launcher.check_repositories(Arguments(["--model-repository", str(tmp_path), "--load-model=modèle-1_a.b"]))


@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 64, None), (64, 512, 512), (300, 512, 300)])
def test_too_few_descriptors_are_one_line(soft: int, hard: int, expected: int | None) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from serving.launcher import allow_descriptors, LauncherError\n"
        "try:\n    allow_descriptors()\n    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except LauncherError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == str(expected or "expected a limit of at least 128 open files, found 64: ulimit -n 1024")


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("1m", "expected 4 MB of shared memory for 4 processes of models, found 1 MB free (Docker: --shm-size)"),
        ("4m", "enough"),
        ("0", "enough"),  # no limit
        ("1m,mode=555", "expected a writable folder for shared memory, found none"),
    ],
)
def test_too_little_shared_memory_is_one_line(tmp_path: Path, size: str, told: str) -> None:
    published(tmp_path, versions=3, instances="instance_group [{ count: 1 }, { count: 1 }]")
    (tmp_path / "damaged").mkdir()
    code = """if True:
        import sys
        from serving.preflight import Arguments, LauncherError, check_shared_memory
        try:
            check_shared_memory(Arguments([f"--model-repository={sys.argv[1]}"]))
            print("enough")
        except LauncherError as error:
            print(error)
    """
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    small = [*alone, f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec setpriv --bounding-set -all "$@"', "sh"]
    if subprocess.run([*small, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount")
    command = [*small, sys.executable, "-c", code, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip().removeprefix("/dev/shm: ") == told
