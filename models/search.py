"""Bayesian search of training parameters: trials -> the next parameters, and their file.

A Gaussian process models accuracy; the next trial has the highest expected improvement under noise (Snoek et al.,
"Practical Bayesian optimization", 2012; Ament et al., 2023; BoTorch: Balandat et al., 2020).
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from models.config import TRANSFORMER_NAMES, Augmentation, ModelName
from models.files import write_atomically

if TYPE_CHECKING:
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

Space: TypeAlias = "list[RangeParameterConfig | ChoiceParameterConfig]"
AnyTrial = TypeVar("AnyTrial")

Schedule = Literal["constant", "one-cycle"]

# Batch statistics allow higher rates.
NARROW: tuple[ModelName, ...] = ("vit", "vit-dtn", "vit-minmax", "vit-zscore")
LEARNING_RATES: dict[ModelName, tuple[float, float]] = {
    name: (1e-5, 1e-3 if name in NARROW else 1e-2) for name in (*TRANSFORMER_NAMES, "cnn")
}
BATCH_SIZES = (20, 120)
FIRST_TRIALS = 5  # the centre and Sobol's points, before the Gaussian process


class SearchError(Exception):
    pass


@dataclass(frozen=True)
class Search:
    model: ModelName
    dataset: str
    depths: tuple[int, int]  # lowest, highest
    schedules: tuple[Schedule, ...]
    epochs: int
    train_images: int
    held_out_images: int
    seed: int
    augment: Augmentation = "none"  # of training and held-out images, as in the published study

    @property
    def learning_rates(self) -> tuple[float, float]:
        return LEARNING_RATES[self.model]


@dataclass(frozen=True)
class Parameters:
    """Options of models/train.py."""

    lr: float
    batch_size: int
    depth: int
    schedule: Schedule


@dataclass(frozen=True)
class Trial:
    """Held-out `accuracy` in [0, 1] after the last epoch, or the `error` of a failed training."""

    parameters: Parameters
    accuracy: float | None
    duration_s: float
    error: str | None = None


def propose(search: Search, trials: Sequence[Trial]) -> Parameters:
    """The same seed gives the same trial, up to rounding."""
    worst = min((trial.accuracy for trial in trials if trial.accuracy is not None), default=0.0)
    with quiet():
        client = ax_client(search.seed, _space(search), "accuracy", len(trials))
        for trial in trials:
            searched = {name: getattr(trial.parameters, name) for name in searched_names(search)}
            index = client.attach_trial(parameters=searched)
            accuracy = worst if trial.accuracy is None else trial.accuracy
            client.complete_trial(index, raw_data={"accuracy": accuracy})
        (proposed,) = client.get_next_trials(max_trials=1).values()
    fixed = {"depth": search.depths[0], "schedule": search.schedules[0]}
    return Parameters(**{**fixed, **proposed})  # type: ignore[arg-type]  # Ax knows numbers and texts, not which


def ax_client(seed: int, space: Space, objective: str, trials: int) -> Client:
    from ax.api.client import Client

    client = Client(random_seed=seed)
    client.configure_experiment(parameters=space)
    client.configure_optimization(objective=objective)
    if trials < FIRST_TRIALS:
        client.configure_generation_strategy(initialization_budget=FIRST_TRIALS, initialization_random_seed=seed)
    else:
        client.configure_generation_strategy(initialization_budget=0, initialize_with_center=False)
    return client


def searched_names(search: Search) -> list[str]:
    depth = ["depth"] if search.depths[0] < search.depths[1] else []
    return ["lr", "batch_size", *depth, *(["schedule"] if len(search.schedules) > 1 else [])]


def _space(search: Search) -> Space:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    every: dict[str, RangeParameterConfig | ChoiceParameterConfig] = {
        "lr": RangeParameterConfig("lr", search.learning_rates, "float", scaling="log"),
        "batch_size": RangeParameterConfig("batch_size", BATCH_SIZES, "int"),
        "depth": RangeParameterConfig("depth", search.depths, "int"),
        "schedule": ChoiceParameterConfig("schedule", [*map(str, search.schedules)], "str", is_ordered=False),
    }
    return [every[name] for name in searched_names(search)]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences Ax's log and warnings: users cannot act on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ax.utils.common.logger import set_stderr_log_level

        set_stderr_log_level(logging.ERROR)
        yield


def check_installed() -> None:
    for module, package in (("ax", "ax-platform"), ("matplotlib", "matplotlib")):
        if find_spec(module) is None:
            raise SearchError(
                f"expected {package}, found none; install it: pip install -c constraints.txt -e '.[search]'"
            )


def best(trials: Sequence[Trial]) -> Trial:
    """Raises SearchError if all failed."""
    finished = [trial for trial in trials if trial.accuracy is not None]
    if not finished:
        raise SearchError(f"expected a trial whose loss stays finite, found {len(trials)} failures")
    return max(finished, key=lambda trial: trial.accuracy or 0.0)


def write(path: Path, search: Search, trials: Sequence[Trial], environment: dict[str, Any]) -> None:
    rows = [
        {"trial": number, "status": "completed" if trial.error is None else "failed", **asdict(trial)}
        for number, trial in enumerate(trials, start=1)
    ]
    content = {"search": _as_json(search), "environment": environment, "trials": rows}
    write_atomically(path, json.dumps(content, indent=2).encode())


def read(path: Path, search: Search) -> list[Trial]:
    trials = read_trials(path, _as_json(search), _trial, {"augment": Search.augment})
    for number, trial in enumerate(trials, start=1):
        _check(f"{path}: trial {number}", search, trial)
    return trials


def read_trials(
    path: Path, search: Mapping[str, Any], trial: Callable[[dict[str, Any]], AnyTrial], usual: Mapping[str, Any]
) -> list[AnyTrial]:
    """`search`: as in the file; `usual`: values that older files lack. Raises SearchError for a damaged file or
    another search.
    """
    if not path.exists():
        return []
    try:
        saved = json.loads(path.read_bytes())
        earlier, trials = dict(saved["search"]), [trial(row) for row in saved["trials"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SearchError(f"{path}: expected the trials of a search, found {error!r}") from error
    for name, value in search.items():
        if earlier.get(name, usual.get(name)) != value:
            raise SearchError(
                f"{path}: expected a search with {name} {value}, found {earlier.get(name)}; name another --output"
            )
    return trials


def _as_json(search: Search) -> dict[str, Any]:
    values = asdict(search) | {"learning_rates": search.learning_rates, "batch_sizes": BATCH_SIZES}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _trial(row: dict[str, Any]) -> Trial:
    parameters = Parameters(**row["parameters"])
    return Trial(parameters, **{field.name: row[field.name] for field in fields(Trial) if field.name != "parameters"})


def _check(where: str, search: Search, trial: Trial) -> None:
    parameters = trial.parameters
    expected: list[tuple[str, Any, type[int] | type[float], tuple[float, float]]] = [
        ("lr", parameters.lr, float, search.learning_rates),
        ("batch_size", parameters.batch_size, int, BATCH_SIZES),
        ("depth", parameters.depth, int, search.depths),
        ("duration_s", trial.duration_s, float, (0.0, float("inf"))),
    ]
    if trial.error is None:
        expected.append(("accuracy", trial.accuracy, float, (0.0, 1.0)))
    for name, value, kind, (low, high) in expected:
        if not (type(value) is kind and low <= value <= high):
            raise SearchError(f"{where}: expected {name} from {low} to {high}, found {value}")
    if parameters.schedule not in search.schedules:
        raise SearchError(f"{where}: expected schedule {' or '.join(search.schedules)}, found {parameters.schedule}")
    if trial.error is not None and (not isinstance(trial.error, str) or trial.accuracy is not None):
        raise SearchError(f"{where}: expected an accuracy or an error, found {trial.accuracy} and {trial.error}")
