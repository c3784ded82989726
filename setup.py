"""Everything else is in pyproject.toml.

In a wheel all modules lie in one folder, which a .pth file puts at the end of Python's path: common names like `models`
neither overwrite nor hide another package's, and imports keep their one spelling. A checkout (`pip install -e .`) puts
its own folder on the path. `pip install --target` reads no .pth file: there PYTHONPATH needs the folder.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.install_lib import install_lib

FOLDER = "vitbn_files"


class InstallLib(install_lib):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.site = Path(self.install_dir)
        self.install_dir = str(self.site / FOLDER)

    def run(self) -> None:
        super().run()
        (self.site / "vitbn.pth").write_text(f"{FOLDER}\n")


setup(cmdclass={"install_lib": InstallLib})
