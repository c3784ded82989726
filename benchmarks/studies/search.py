"""Bayesian search of options of models/train.py: trials -> the next values, and the file of the trials.

A Gaussian process models accuracy. The next trial has the highest expected improvement under noise (Snoek et al.,
"Practical Bayesian optimization", 2012; Ament et al., 2023; BoTorch: Balandat et al., 2020). A search that also
measures speed maximises accuracy and the logarithm of images a second by noisy expected hypervolume improvement
(Daulton et al., "Parallel Bayesian Optimization", 2021).
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import reason, write_atomically
from models.networks.config import BY_TOKEN, TRANSFORMER_NAMES, Augmentation, ModelName

if TYPE_CHECKING:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

Value = int | float | str
Values = Mapping[str, Value]

LEARNING_RATES: dict[ModelName, tuple[float, float]] = {
    name: (1e-5, 1e-3 if name in BY_TOKEN else 1e-2)  # networks without batch statistics need lower rates
    for name in (*TRANSFORMER_NAMES, "cnn")
}
BATCH_SIZES = (20, 120)
FIRST_TRIALS = 5  # the centre and points of a Sobol sequence, before the Gaussian process
LARGEST = 1e12  # plausible duration in seconds, and plausible images a second


class SearchError(Exception):
    """The message names the file, what was expected and what was found."""


@dataclass(frozen=True)
class Axis:
    """The values of an option: all from the first to the last, or with `listed` only these.

    A range of floats is searched on a logarithmic scale.
    """

    values: tuple[Value, ...]
    listed: bool = False

    @property
    def searched(self) -> bool:
        return self.values[0] != self.values[-1]

    def holds(self, value: Any) -> bool:
        """Whether the value has the axis's type and is one of its values."""
        first: Any = self.values[0]
        if type(value) is not type(first):
            return False
        return value in self.values if self.listed else bool(first <= value <= self.values[-1])

    def in_ax(self, name: str) -> RangeParameterConfig | ChoiceParameterConfig:
        """The axis as a parameter of the package Ax."""
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        kind: Any = type(self.values[0]).__name__
        if self.listed:
            choices: list[Any] = list(self.values)
            return ChoiceParameterConfig(name, choices, kind, is_ordered=kind != "str")
        low, high = self.values
        return RangeParameterConfig(name, (float(low), float(high)), kind, scaling="log" if kind == "float" else None)


@dataclass(frozen=True)
class Search:
    """What is searched, and on what. `space`: option -> axis; an option with one value is fixed.

    `epochs`: of a trial. `speed`: whether images a second count as accuracy does.
    """

    model: ModelName
    dataset: str
    space: Mapping[str, Axis]
    epochs: int
    train_images: int
    held_out_images: int
    seed: int
    augment: Augmentation = "none"  # of training and held-out images, as in the published study
    speed: bool = False

    @property
    def searched(self) -> list[str]:
        """The options with several values."""
        return [name for name, axis in self.space.items() if axis.searched]


@dataclass(frozen=True)
class Trial:
    """A training with these `parameters`: its figures, or the `error` of a failed training.

    `accuracy`: on held-out images after the last epoch, in [0, 1]. `images_per_s`: of the rewritten file, in its best
    batch and sharing of the cores, if the search measures speed.
    """

    parameters: Values
    accuracy: float | None
    duration_s: float
    error: str | None = None
    images_per_s: float | None = None


def propose(search: Search, trials: Sequence[Trial]) -> Values:
    """The values for the next trial. The same seed and trials give the same values, up to rounding.

    A failed trial counts like the worst and the slowest trial.
    """
    worst = min((trial.accuracy for trial in trials if trial.accuracy is not None), default=0.0)
    slowest = min((trial.images_per_s for trial in trials if trial.images_per_s is not None), default=1.0)
    with _quiet():
        from ax.api.client import Client
        from botorch.acquisition.multi_objective import logei

        # Else BoTorch compiles C++ for minutes, or waits for ever after a killed compilation.
        logei._load_attempted = True
        client = Client(random_seed=search.seed)
        client.configure_experiment(parameters=[search.space[name].in_ax(name) for name in search.searched])
        client.configure_optimization(objective="accuracy, log_speed" if search.speed else "accuracy")
        if len(trials) < FIRST_TRIALS:
            seed = search.seed
            client.configure_generation_strategy(initialization_budget=FIRST_TRIALS, initialization_random_seed=seed)
        else:
            client.configure_generation_strategy(initialization_budget=0, initialize_with_center=False)
        for trial in trials:
            index = client.attach_trial(parameters={name: trial.parameters[name] for name in search.searched})
            figures = {"accuracy": worst if trial.accuracy is None else trial.accuracy}
            if search.speed:
                figures["log_speed"] = math.log10(trial.images_per_s or slowest)
            client.complete_trial(index, raw_data=figures)
        (proposed,) = client.get_next_trials(max_trials=1).values()
    fixed: dict[str, Any] = {name: axis.values[0] for name, axis in search.space.items()}
    return {name: type(value)(proposed.get(name, value)) for name, value in fixed.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Ax's log and warnings: users cannot act on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ax.utils.common.logger import set_stderr_log_level

        set_stderr_log_level(logging.ERROR)
        yield


def check_installed() -> None:
    """Raises SearchError if a package that a search needs is missing."""
    from vitbn_packages import install

    for module, package in (("ax", "ax-platform"), ("matplotlib", "matplotlib")):
        if find_spec(module) is None:
            raise SearchError(f"expected {package}, found none; install it: {install('search')}")


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The Pareto front of accuracy and speed, fastest first; without speeds the most accurate trial alone."""
    finished = [(trial.images_per_s or 0.0, trial.accuracy, trial) for trial in trials if trial.accuracy is not None]
    best_accuracy, pareto = -1.0, []
    for _, accuracy, trial in sorted(finished, key=lambda figures: figures[:2], reverse=True):
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            pareto.append(trial)
    return pareto


def best(trials: Sequence[Trial]) -> Trial:
    """The most accurate trial. Raises SearchError if all failed."""
    if not (pareto := front(trials)):
        raise SearchError(f"expected a trial whose loss stays finite, found {len(trials)} failures")
    return pareto[-1]


def write(path: Path, search: Search, trials: Sequence[Trial], environment: Mapping[str, Any]) -> None:
    """Writes the file of the trials, which `read` reads."""
    rows = [{"trial": number, **asdict(trial)} for number, trial in enumerate(trials, start=1)]
    content = {"search": asdict(search), "environment": environment, "trials": rows}
    write_atomically(path, json.dumps(content, indent=2).encode())


def read(path: Path, search: Search) -> list[Trial]:
    """The trials in the file; none without a file. Raises SearchError for a damaged file or another search."""
    if not path.exists():
        return []
    try:
        saved = json.loads(path.read_bytes())
        saved_search = dict(saved["search"])
        trials = [Trial(**{name: value for name, value in row.items() if name != "trial"}) for row in saved["trials"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SearchError(f"{path}: expected the trials of a search, found {reason(error)}") from error
    for name, value in json.loads(json.dumps(asdict(search))).items():
        if (found := saved_search.get(name)) != value:
            raise SearchError(f"{path}: expected a search with {name} {value}, found {found}; name another --output")
    for number, trial in enumerate(trials, start=1):
        _check(f"{path}: trial {number}", search, trial)
    return trials


def _check(where: str, search: Search, trial: Trial) -> None:
    """Raises SearchError for a trial that the search cannot have made. `where`: file and trial, for the message."""
    parameters = trial.parameters if isinstance(trial.parameters, dict) else {}
    for name, axis in search.space.items():
        if not axis.holds(parameters.get(name)):
            expected = (" or " if axis.listed else " to ").join(map(str, axis.values))
            raise SearchError(f"{where}: expected {name} {expected}, found {parameters.get(name)}")
    figures: list[tuple[str, object, float, float]] = [("duration_s", trial.duration_s, 0.0, LARGEST)]
    if trial.error is None:
        figures.append(("accuracy", trial.accuracy, 0.0, 1.0))
        figures += [("images_per_s", trial.images_per_s, 1 / LARGEST, LARGEST)] if search.speed else []
    for name, value, low, high in figures:
        if not (type(value) is float and low <= value <= high):
            raise SearchError(f"{where}: expected {name} from {low:g} to {high:g}, found {value}")
    if trial.error is not None and (not isinstance(trial.error, str) or trial.accuracy is not None):
        raise SearchError(f"{where}: expected an accuracy or an error, found {trial.accuracy} and {trial.error}")
