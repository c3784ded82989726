"""Installs a wheel's modules into a folder; everything else is in pyproject.toml.

A .pth file puts this folder at the end of Python's path. So packages with common names, such as `models`, neither
overwrite nor hide other packages, and imports are spelled as in a checkout, which `pip install -e .` puts on the path.
`pip install --target` reads no .pth file: there PYTHONPATH needs the folder.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.install_lib import install_lib

FOLDER = "vitbn_files"


class InstallLib(install_lib):
    """Installs into FOLDER of site-packages, and writes the .pth file."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.site = Path(self.install_dir)
        self.install_dir = str(self.site / FOLDER)

    def run(self) -> None:
        super().run()
        (self.site / "vitbn.pth").write_text(f"{FOLDER}\n")


setup(cmdclass={"install_lib": InstallLib})
