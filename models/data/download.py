"""Finds a dataset's folder or cache, and downloads missing files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.files import reason
from models.data.dataset import DataError


def named_folder(data_dir: Path | None, variable: str) -> Path | None:
    return data_dir or (Path(os.environ[variable]) if os.environ.get(variable) else None)


def cache_folder(name: str) -> Path:
    try:
        import pooch
    except ModuleNotFoundError as error:
        from vitbn_packages import install

        expected = f"a folder with it in --data-dir, or pooch ({install('train')})"
        raise DataError(f"{name}: expected {expected}, found none") from error
    return Path(pooch.os_cache("vitbn")) / name


def download(checksums: Mapping[str, str], mirrors: Sequence[str], folder: Path, otherwise: str) -> None:
    """Fetches missing files from the first mirror that has them.

    Raises DataError, whose message ends in `otherwise` if no mirror gives the right checksum.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    for name, checksum in checksums.items():
        reasons = []
        for mirror in mirrors:
            try:
                fetch = pooch.HTTPDownloader(progressbar=True, timeout=30)
                pooch.retrieve(mirror + name, known_hash=checksum, fname=name, path=folder, downloader=fetch)
                break
            except requests.RequestException as error:
                reasons.append(f"{mirror}: {type(error).__name__}")
            except ValueError as error:  # another checksum
                reasons.append(f"{mirror}: {' '.join(str(error).split()).partition('. ')[0]}")
            except OSError as error:
                raise DataError(f"{folder / name}: expected to write it, found {reason(error)}") from error
        else:
            raise DataError(f"{name}: expected it from a mirror, found {'; '.join(reasons)}. Offline? {otherwise}")
