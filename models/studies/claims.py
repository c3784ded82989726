"""The published claims beside our figures, each with a verdict by `models.studies.verdicts`.

In: the studies' JSON files. Out: a Markdown page. Sources of the claims:
github.com/anindyahepth/BatchNorm_in_Transformers_CV and its authors' write-ups; Ioffe and Szegedy, "Batch
Normalization", 2015, section 4.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.plots.results import forms_of
from models.studies import verdicts
from models.studies.running import StudyError
from models.studies.verdicts import Finding, Result, Verdict

ORDER: tuple[Verdict, ...] = ("does not hold", "holds in part", "not tested here", "holds")
MEANINGS: dict[Verdict, str] = {
    "does not hold": "our figures contradict the claim",
    "holds in part": "some of the cases that the claim covers agree",
    "not tested here": "we have no figure",
    "holds": "our figures agree",
}


@dataclass(frozen=True)
class Size:
    epochs: int
    images: int

    def __str__(self) -> str:
        return f"{self.epochs} epochs, {self.images:,} images"


@dataclass(frozen=True)
class Claim:
    """`also`: runs of another size, shown if they have a result; the claim holds in part if verdicts differ."""

    statement: str
    published: str
    size: Size | str
    study: str
    judge: Callable[[Result], Finding]
    of_times: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    claim: Claim
    findings: Mapping[str, Finding]  # by study

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings.values()}
        return verdicts.pop() if len(verdicts) == 1 else "holds in part"


def page(folder: Path) -> str:
    studies = {claim: [claim.study, *(name for name in claim.also if (folder / name).is_dir())] for claim in CLAIMS}
    sizes = {name: claim.size for claim, names in studies.items() for name in names}
    results = {name: _read(folder / name / f"{name}.json") for name in sorted(sizes)}
    judged = [
        Judged(claim, {name: _judge(claim, name, results[name]) for name in names}) for claim, names in studies.items()
    ]
    judged.sort(key=lambda each: ORDER.index(each.verdict))
    return "\n".join([*_head(judged), *_table(judged, results), *_sizes(results, sizes)]) + "\n"


def _read(path: Path) -> Result:
    try:
        result: Result = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: expected the result of a study, found {error}") from error
    return result


def _judge(claim: Claim, study: str, result: Result) -> Finding:
    try:
        return claim.judge(result)
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise StudyError(f"{study}.json: expected the figures of this study, found {error!r}") from error


def _head(judged: Sequence[Judged]) -> Iterator[str]:
    counts = {verdict: sum(each.verdict == verdict for each in judged) for verdict in ORDER}
    yield "# The published claims, each with a verdict"
    yield ""
    yield "Unfavourable verdicts come first. Most of our runs are smaller than the published runs: a verdict from a"
    yield "small run is a verdict about that size. The sizes stand below the table."
    yield ""
    yield "| verdict | meaning | claims |"
    yield "|---|---|---:|"
    for verdict in ORDER:
        yield f"| {verdict} | {MEANINGS[verdict]} | {counts[verdict]} |"
    yield ""
    yield "    python models/study.py claims"
    yield ""
    yield "writes this page from the JSON files of the studies. Times come from a CPU here, from an L4 GPU in"
    yield "the publication; only ratios compare. BatchNorm normalises rows here, which takes about 8 % less time than"
    yield "the published transpose."
    yield ""


def _table(judged: Sequence[Judged], results: Mapping[str, Result]) -> Iterator[str]:
    yield "| verdict | claim | published | measured here | study |"
    yield "|---|---|---|---|---|"
    for each in judged:
        claim = each.claim
        machine = f" (one thread of a CPU, {results[claim.study]['environment']['cpu']})" if claim.of_times else ""
        published = claim.published + (" (L4 GPU)" if claim.of_times else "")
        ours = ". ".join(
            f"{_size(results[name])}, seeds {results[name]['scope']['seeds']}: {finding.ours}"
            if len(each.findings) > 1
            else finding.ours
            for name, finding in each.findings.items()
        )
        links = ", ".join(f"[{name}]({_link(name)})" for name in each.findings)
        yield f"| **{each.verdict}** | {claim.statement} | {published}; {claim.size} | {ours}{machine} | {links} |"
    yield ""


def _size(result: Result) -> Size | str:
    scope = result.get("scope", {})
    return Size(scope["epochs"], scope["train_images"]) if scope.get("epochs") else "nothing trained"


def _link(study: str) -> str:
    return f"../benchmarks/results/studies/{study}/{study}.md"


def _sizes(results: Mapping[str, Result], sizes: Mapping[str, Size | str]) -> Iterator[str]:
    yield "Form: the served form computes only what the head reads; the plain form is the published network. Hours:"
    yield "these runs at the published size on this machine, one thread, from the quickest epoch of each."
    yield ""
    yield "| study | size here | seeds | form | hours at the published size | command |"
    yield "|---|---|---:|---|---:|---|"
    for name, result in results.items():
        scope = result.get("scope", {})
        here, hours, size = _size(result), "-", sizes[name]
        if isinstance(size, Size) and isinstance(here, Size):
            hours = f"{_hours(result['runs'], here, size):,.1f}"
        forms = ", ".join(forms_of(result)) or "plain"
        yield f"| {name} | {here} | {scope.get('seeds', 1)} | {forms} | {hours} | `{result['command']}` |"


def _hours(runs: Sequence[Mapping[str, Any]], here: Size, published: Size) -> float:
    """The time at the published size, by the quickest epochs: other work slows most."""
    seconds = 0.0
    for run in runs:
        if run["series"]:
            train_s, test_s = (min(epoch[f"{part}_time_s"] for epoch in run["series"]) for part in ("training", "test"))
            seconds += published.epochs * (train_s * published.images / here.images + test_s)
    return seconds / 3600


RATES_SIZE, DEPTHS_SIZE = Size(30, 60_000), Size(10, 60_000)
CLAIMS = (
    Claim(
        "BatchNorm in place of LayerNorm saves time at inference",
        "about 60 % less for ViTBN and ViTBNFFN",
        RATES_SIZE,
        "learning-rates",
        verdicts.inference,
        of_times=True,
    ),
    Claim(
        "ViTBNFFN trains in less time than ViT",
        "ViT's time over its own 2.7, 3.6 and 2.7 at three rates",
        RATES_SIZE,
        "learning-rates",
        verdicts.training_ratio("vitbnffn"),
        of_times=True,
    ),
    Claim(
        "ViTBN trains in less time than ViT",
        "ViT's time over its own 2.5, 3.5 and 4.3 at three rates",
        RATES_SIZE,
        "learning-rates",
        verdicts.training_ratio("vitbn"),
        of_times=True,
    ),
    Claim(
        "At a learning rate of 0.01 the BatchNorm models learn and ViT collapses",
        "BatchNorm models above 97 %",
        RATES_SIZE,
        "learning-rates-three-seeds",
        verdicts.high_rate,
        also=("learning-rates-0.01-all-images",),
    ),
    Claim("At 0.0005 ViT converges faster", "no figure", RATES_SIZE, "learning-rates-three-seeds", verdicts.low_rate),
    Claim(
        "The time of an epoch changes with the learning rate",
        "the ratios above",
        RATES_SIZE,
        "learning-rates",
        verdicts.time_by_rate,
        of_times=True,
    ),
    Claim(
        "At 0.005 ViT stops learning from a critical depth on, ViTBNFFN goes deeper",
        "no figure",
        DEPTHS_SIZE,
        "depths-0.005",
        verdicts.critical_depth,
    ),
    Claim(
        "At 0.003 ViTBNFFN is much more accurate from depth 6 on",
        "a plot of depths 4 to 7",
        DEPTHS_SIZE,
        "depths-0.003",
        verdicts.deep_at_0003,
        also=("depths-0.003-all-images",),
    ),
    Claim(
        "At high rates ViTBNFFN is more stable than ViT",
        "no figure",
        DEPTHS_SIZE,
        "depths-0.005",
        verdicts.stable_when_deep,
        also=("depths-0.003", "depths-0.003-all-images"),
    ),
    Claim(
        "ViTBNFFN converges faster than ViT where the network is deep",
        "no figure",
        DEPTHS_SIZE,
        "depths-0.003",
        verdicts.faster_when_deep,
        also=("depths-0.003-all-images",),
    ),
    Claim(
        "BatchNorm lets a network with sigmoids learn faster and at higher rates",
        "no figure at these rates",
        "50,000 steps",
        "dnn",
        verdicts.sigmoids,
    ),
    Claim("Networks trained on MNIST read EMNIST's digits", "no figure", "40,000 images", "shift", verdicts.emnist),
)
