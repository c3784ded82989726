"""What a wheel installs, beside packages of the same names."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("common", "models", "export", "serving", "clients", "benchmarks")
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "vitbn.py", "vitbn_packages.py")
OLDEST_SETUPTOOLS = 77  # pyproject.toml


def packages() -> list[str]:
    """The folders of installed packages, without the checkout."""
    return [each for each in sys.path if each.endswith("site-packages")]


def with_setuptools() -> str:
    for folder in packages():
        versions = [re.match(r"setuptools-(\d+)", each.name) for each in Path(folder).glob("setuptools-*.dist-info")]
        if any(int(version[1]) >= OLDEST_SETUPTOOLS for version in versions if version):
            return folder
    return pytest.fail(f"no setuptools of at least {OLDEST_SETUPTOOLS} is installed: make setup")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    for name in PARTS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    build = "import setuptools.build_meta as build; build.build_wheel('dist')"
    environment = os.environ | {"PYTHONPATH": with_setuptools()}
    subprocess.run([sys.executable, "-c", build], cwd=folder, env=environment, capture_output=True, check=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of an environment with the wheel and with what it needs."""
    environment = tmp_path_factory.mktemp("env")
    venv.create(environment, symlinks=True)
    (folder,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(folder)
    (folder / "needed.pth").write_text("\n".join(packages()))
    return folder


def run(site: Path, program: str) -> subprocess.CompletedProcess[str]:
    python = site.parents[2] / "bin/python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", program]
    return subprocess.run(command, cwd=site.parents[3], env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_no_name_of_ours_stands_beside_others(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {re.sub(r"-.*", "", name) for name in names} == {"vitbn", "vitbn.pth", "vitbn_files"}


@pytest.mark.slow
def test_the_program_runs_from_a_wheel_with_the_same_imports(site: Path) -> None:
    done = run(site, "import vitbn; vitbn.main(['models'])")
    assert (done.returncode, done.stderr) == (0, "")
    assert "vitbn-tiny" in done.stdout
    found = run(site, "import clients.classifier as each; print(each.__file__)").stdout
    assert found.strip() == str(site / "vitbn_files/clients/classifier.py")


@pytest.mark.slow
def test_a_package_of_the_same_name_stays_whole_and_the_program_refuses_beside_it(site: Path) -> None:
    """The last test of this environment."""
    (site / "models").mkdir()
    (site / "models/__init__.py").write_text("THEIRS = 1\n")
    assert run(site, "import models; print(models.THEIRS)").stdout == "1\n"
    done = run(site, "import vitbn; vitbn.main(['models'])")
    ours = f"expected the package models of {site}/vitbn_files, found another in {site}"
    assert (done.returncode, done.stderr) == (1, f"Error: {ours}: give vitbn an environment of its own\n")
