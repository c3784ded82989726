"""Each model at the learning rate and batch size that models/tune.py gave.

In: the search's files, one a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import ConfigError, ModelConfig
from models.plots.results import Result
from models.studies.protocol import Extent, Scope, Study
from models.studies.running import Run, StudyError, Trained
from models.studies.series import ACCURACY, by_epoch, runs_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIX = ".best.json"


def study(params: Sequence[Path]) -> Study:
    """The study with the parameters in these files, or in the files of these folders."""
    return Study(
        name="optimised",
        question="How do the models compare when each is trained at its own searched learning rate and batch size?",
        epochs=30,
        test_batch=5000,
        quick=Extent(epochs=4, train_images=4000, test_images=1000),
        runs=partial(runs, params),
        findings=findings,
        plots=plots,
    )


def runs(params: Sequence[Path], scope: Scope) -> list[Run]:
    """A run per file. Raises StudyError for a folder without files, and for two files of one model."""
    files = [file for path in params for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    listed = [read(file, scope) for file in files]
    for number, run in enumerate(listed):
        if run.label in [other.label for other in listed[:number]]:
            raise StudyError(f"{files[number]}: expected another model than in the files before, found {run.label}")
    if not listed:
        raise StudyError(f"{params[0]}: expected files *{SUFFIX}, as models/tune.py writes, found none")
    return listed


def read(path: Path, scope: Scope) -> Run:
    """The run with the options in a file; raises StudyError for any other file."""
    from models.training import TrainingOptions

    try:
        values = dict(json.loads(path.read_bytes()))
        if (dataset := values.pop("dataset", scope.dataset.name)) != scope.dataset.name:
            raise StudyError(f"{path}: expected parameters for {scope.dataset.name}, found those for {dataset}")
        config = ModelConfig(**{name: values.pop(name) for name in ("model", "depth") if name in values})
        options = TrainingOptions(epochs=scope.epochs, seed=0, device=scope.device, **values)
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise StudyError(f"{path}: expected a JSON object of options for models/train.py, found {error}") from error
    return Run(config.model, config, options)


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    return {"derived": [], "tables": [runs_table(trained)], "notes": []}


def plots(result: Result) -> dict[str, Figure]:
    title = "Test accuracy, each at its best"
    return {"test-accuracy": by_epoch(result, ACCURACY, title, {"": result["runs"]})}
