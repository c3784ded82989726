"""The page's requests to Triton. Each opens a new connection, in milliseconds, so it sees the models served now."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from clients.classifier import Classifier, ListedModel, Prediction, ServedModel, list_models
from clients.errors import ModelNotFound
from clients.images.prepare import Prepared
from clients.options import Options
from clients.served_models import check_choice, most_accurate
from clients.web.decoder_process import Decoder


class Models(NamedTuple):
    """The ready models by name, the preferred name, and the name of each other model with the reason."""

    ready: list[ServedModel]
    preferred: str
    left_out: list[tuple[str, str]]


class Answer(NamedTuple):
    """What `model` says of a picture, and how the picture was prepared for it."""

    model: ServedModel
    prediction: Prediction
    prepared: Prepared
    preparation_ms: float


class Triton:
    """Asks Triton, from any thread. Without `preferred` the best transformer answers.

    `close` ends the process that decodes pictures.
    """

    def __init__(self, options: Options, preferred: str | None = None) -> None:
        self._options = options
        self._preferred = preferred
        self._decoder = Decoder()
        self.close = self._decoder.close

    def models(self) -> Models:
        """Raises the errors of Classifier."""
        listed = list_models(self._options)
        ready = [each.model for each in listed if each.model is not None]
        left_out = [(each.name, _in_short(each)) for each in listed if each.model is None]
        if ready and not self._preferred:
            return Models(ready, most_accurate(_for_drawings(ready)).name, left_out)
        with Classifier(self._options, self._preferred) as classifier:
            return Models(ready, classifier.model.name, left_out)

    def ask(
        self, content: bytes, name: str | None, turn: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Answer:
        """Classifies the image file `content` with the model `name`, else with the preferred model.

        The file is decoded inside the context `turn()`. Raises InvalidImage, the errors of Classifier, and
        ModelNotFound if no model is named or preferred and the models have different labels.
        """
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):  # part of Triton's URLs
            raise ModelNotFound(f"expected the name of a model on the server, found {name!r}")
        with Classifier(self._options, name or self._preferred or self._default()) as classifier:
            start_ns = time.perf_counter_ns()
            prepared = self._decoder.prepare(content, classifier.model, turn)
            preparation_ms = (time.perf_counter_ns() - start_ns) / 1e6
            (prediction,) = classifier.classify(prepared.images)
        return Answer(classifier.model, prediction, prepared, preparation_ms)

    def _default(self) -> str:
        models = self.models()
        check_choice(_for_drawings(models.ready), self._options.addresses[0])
        return models.preferred


def _in_short(left_out: ListedModel) -> str:
    """The reason, without the model's name and without details for developers."""
    return left_out.reason.removeprefix(f"model {left_out.name!r}: ").partition(": ")[0]


def _for_drawings(models: Sequence[ServedModel]) -> list[ServedModel]:
    """The models of drawings, because the page is there to draw on; all models if none is of drawings."""
    of_ink = [model for model in models if model.preprocessing == "ink"]
    return of_ink or list(models)
