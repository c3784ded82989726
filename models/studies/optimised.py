"""Each model at its searched parameters. In: files of models/tune.py, one a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import ConfigError, ModelConfig
from models.plots.results import Column, Result, percent, table
from models.studies.protocol import Extent, Scope, Study
from models.studies.ratios import compare
from models.studies.running import Run, StudyError, Trained
from models.studies.series import BY_EPOCH, by_epoch, runs_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIX = ".best.json"


def study(params: Sequence[Path]) -> Study:
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
    files = [file for path in params for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    listed = [read(file, scope) for file in files]
    for number, run in enumerate(listed):
        if run.label in [other.label for other in listed[:number]]:
            raise StudyError(f"{files[number]}: expected another model than in the files before, found {run.label}")
    if not listed:
        raise StudyError(f"{params[0]}: expected files *{SUFFIX}, as models/tune.py writes, found none")
    return listed


def read(path: Path, scope: Scope) -> Run:
    from models.training import TrainingOptions

    try:
        values: dict[str, Any] = {"form": scope.form, **json.loads(path.read_bytes())}
        if (dataset := values.pop("dataset", scope.dataset.name)) != scope.dataset.name:
            raise StudyError(f"{path}: expected parameters for {scope.dataset.name}, found parameters for {dataset}")
        config = ModelConfig(**{name: values.pop(name) for name in ("model", "depth") if name in values})
        options = TrainingOptions(epochs=scope.epochs, seed=0, device=scope.device, **values)
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise StudyError(f"{path}: expected a JSON object of options for models/train.py, found {error}") from error
    return Run(config.model, config, options)


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    vits = [training for training in trained if training.run.config.model == "vit"]
    others = [training for training in trained if training.run.config.model != "vit"]
    derived = [{"model": other.run.config.model, **compare(vits, [other])} for other in others] if vits else []
    gains = [_gains_table(derived)] if derived else []
    return {"derived": derived, "tables": [*gains, runs_table(trained)], "notes": []}


def _gains_table(derived: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = [Column("model"), *(Column(name, 2) for name in ("r_t", "r_v")), *(Column(f"g_{s} %", 1) for s in "tv")]
    rows = [[row["model"], row["r_t"], row["r_v"], percent(row["g_t"]), percent(row["g_v"])] for row in derived]
    title = "Time of ViT over time of the model, each at its own batch size: r_t training, r_v test, g = 1 - 1/r"
    return table(title, columns, rows)


def plots(result: Result) -> dict[str, Figure]:
    return {
        name: by_epoch(result, quantity, quantity.title, {"each at its searched rate and batch size": result["runs"]})
        for name, quantity in BY_EPOCH.items()
    }
