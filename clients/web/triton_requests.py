"""The page's requests to Triton.

Each request opens a new connection, within milliseconds, so it sees the models that are served now.
"""

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
    """The models of the server.

    ready:     sorted by name.
    preferred: the name of the model that is selected at first.
    left_out:  the names of the other models, with the reason.
    """

    ready: list[ServedModel]
    preferred: str
    left_out: list[tuple[str, str]]


class PictureAnswer(NamedTuple):
    """A model's prediction for a picture, and the picture as the model saw it."""

    model: ServedModel
    prediction: Prediction
    prepared: Prepared
    preparation_ms: float


class Triton:
    """Sends requests to Triton, from any thread.

    preferred: the model that answers if the page names none; None: the most accurate transformer.
    `close` ends the process that decodes pictures.
    """

    def __init__(self, options: Options, preferred: str | None = None) -> None:
        self._options = options
        self._preferred = preferred
        self._decoder = Decoder()
        self.close = self._decoder.close

    def models(self) -> Models:
        """Raises the errors of Classifier (clients/classifier.py)."""
        listed = list_models(self._options)
        ready = [entry.model for entry in listed if entry.model is not None]
        left_out = [(entry.name, _short_reason(entry)) for entry in listed if entry.model is None]
        if ready and not self._preferred:
            return Models(ready, most_accurate(_for_drawings(ready)).name, left_out)
        with Classifier(self._options, self._preferred) as classifier:
            return Models(ready, classifier.model.name, left_out)

    def ask(
        self, content: bytes, name: str | None, turn: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> PictureAnswer:
        """Classifies the image file `content` with the model `name`, else with the preferred model.

        turn: makes the context in which the file is decoded.
        Raises InvalidImage, the errors of Classifier, and ModelNotFound if the page must name a model.
        """
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):  # part of Triton's URLs
            raise ModelNotFound(f"expected the name of a model on the server, found {name!r}")
        with Classifier(self._options, name or self._preferred or self._default_name()) as classifier:
            start_ns = time.perf_counter_ns()
            prepared = self._decoder.prepare(content, classifier.model, turn)
            preparation_ms = (time.perf_counter_ns() - start_ns) / 1e6
            (prediction,) = classifier.classify(prepared.images)
        return PictureAnswer(classifier.model, prediction, prepared, preparation_ms)

    def _default_name(self) -> str:
        """The most accurate transformer. Raises ModelNotFound if the page must name a model."""
        models = self.models()
        check_choice(_for_drawings(models.ready), self._options.addresses[0])
        return models.preferred


def _short_reason(left_out: ListedModel) -> str:
    """The reason without the model's name, and without the details after the first colon."""
    return left_out.reason.removeprefix(f"model {left_out.name!r}: ").partition(": ")[0]


def _for_drawings(models: Sequence[ServedModel]) -> list[ServedModel]:
    """The models of drawings, as the page is made for drawing; all models if there is no model of drawings."""
    of_ink = [model for model in models if model.preprocessing == "ink"]
    return of_ink or list(models)
