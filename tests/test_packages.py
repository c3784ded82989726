import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitbn
import vitbn_packages

ROOT = Path(vitbn.__file__).resolve().parent
SCRIPTS = {"models/calibrate.py": ["--help"], "models/catalog.py": []}
SCRIPTS |= {"benchmarks/studies/tune.py": ["--help"], "benchmarks/studies/study.py": ["--help"]}


def run(command, path):
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(command, env=environment, cwd=path, capture_output=True, text=True)


def hide(folder, package, *modules):
    (folder / package).mkdir()
    for module in ("__init__", *modules):
        (folder / package / f"{module}.py").write_text("")


@pytest.mark.parametrize("form", ["package", "module"])
def test_a_script_says_that_it_is_hidden(tmp_path, form):
    if form == "package":
        hide(tmp_path, "models", "catalog")
    else:
        (tmp_path / "models.py").write_text("")
    done = run([sys.executable, str(ROOT / "models/train.py"), "--help"], tmp_path)
    line = f"Error: expected the package models of {ROOT}, found another in {tmp_path}: remove it from PYTHONPATH\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_other_script_does(tmp_path, script):
    hide(tmp_path, script.partition("/")[0], "networks", "catalog", "data", "studies")
    done = run([sys.executable, str(ROOT / script), *SCRIPTS[script]], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr


def test_the_program_does(tmp_path):
    hide(tmp_path, "export", "to_onnx")
    done = run([sys.executable, "-c", "import vitbn; vitbn.main(['export', '--help'])"], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"expected the package export of {ROOT}, found another in {tmp_path}" in done.stderr


def test_a_package_that_hides_nothing_is_no_error(tmp_path):
    hide(tmp_path, "benchmarks", "config")
    done = run([sys.executable, str(ROOT / "models/train.py"), "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["web"], "flask", "web"),
        (["infer", "digit.png"], "PIL", "client"),
        (["calibrate", __file__], "torch", "base"),
        (["bench", "foreign", "--preset", "packed"], "transformers", "foreign"),
        (["bulk", __file__, "--output", "answers", "--model", __file__], "fsspec", "bulk"),
        (["proxy", "10.0.0.1", "--output", "envoy"], "jinja2", "deploy"),
        (["serve", "--supervised", "--model-repository", "."], "psutil", "serve"),
        (["repository", "publish", __file__, "--pictures"], "tritonclient", "client"),  # before it reads the file
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, command, package, extra):
    without = f"import sys; sys.modules[{package!r}] = None; import vitbn; vitbn.main({command})"
    done = run([sys.executable, "-c", without], tmp_path)
    line = f"Error: expected {package}, found none; install it: {vitbn_packages.install(extra)}\n"
    elsewhere = line.replace("-c constraints.txt -e '.[", f"-c {ROOT}/constraints.txt -e '{ROOT}[")
    assert (done.returncode, done.stderr) == (1, elsewhere)


@pytest.mark.parametrize("clause", ["finally: pass", "except no_such_name: pass"], ids=["alone", "behind a NameError"])
def test_an_interrupt_before_a_command_prints_no_traceback(tmp_path, clause):
    interrupted = f"import vitbn_packages\ntry: raise KeyboardInterrupt\n{clause}"
    done = run([sys.executable, "-c", interrupted], tmp_path)
    assert (done.returncode != 0, done.stderr) == (True, "Aborted!\n")


def test_the_command_that_installs_an_extra_works_where_it_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert vitbn_packages.install("web") == "pip install -c constraints.txt -e '.[web]'"
    (tmp_path / "constraints.txt").write_text("")  # another project's
    monkeypatch.chdir(tmp_path)
    assert vitbn_packages.install("web") == f"pip install -c {ROOT}/constraints.txt -e '{ROOT}[web]'"


VCS = {"url": "https://example.org/v.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
WHEEL = {"url": "file:///x/vitbn-0.2.0-py3-none-any.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [(None, "vitbn[web]"), (WHEEL, f"vitbn[web] @ {WHEEL['url']}"), (VCS, f"vitbn[web] @ git+{VCS['url']}@abc")],
)
def test_an_installed_program_names_no_constraints(tmp_path, origin, requirement):
    information = tmp_path / "vitbn-0.2.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vitbn\nVersion: 0.2.0\n")
    if origin is not None:
        (information / "direct_url.json").write_text(json.dumps(origin))
    (tmp_path / "vitbn_packages.py").write_text((ROOT / "vitbn_packages.py").read_text())
    done = run([sys.executable, "-c", "import vitbn_packages; print(vitbn_packages.install('web'))"], tmp_path)
    assert (done.stdout, done.stderr) == (f"pip install '{requirement}'\n", "")


def test_another_error_keeps_its_traceback(tmp_path):
    done = run([sys.executable, "-c", "import vitbn; import no_such_module"], tmp_path)
    assert done.stderr.startswith("Traceback")
    assert "No module named 'no_such_module'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "ours"),
    [
        (
            "onnxruntime",
            [
                "import export.compare_logits",
                "import clients.bulk.network",
                "import benchmarks.measure.peak_flops_and_bandwidth",
            ],
        ),
        ("openvino", ["from export.engines.openvino_engine import openvino_module; openvino_module()"]),
    ],
)
def test_a_library_reports_to_nobody(tmp_path: Path, library: str, ours: list[str]) -> None:
    """Else its import stores an id of the machine and reports, except under CI."""
    settings = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    unset = ("CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset} | settings
    ids = []
    for program in (*(f"{first}; import {library}" for first in ours), f"import {library}"):
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        ids.append([path for path in tmp_path.rglob("*") if path.name in ("deviceid", "openvino_ga_cid")])
    if not ids[-1]:
        pytest.skip(f"this {library} reports nothing by itself")
    assert not any(ids[:-1])
