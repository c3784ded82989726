"""The page's requests to Triton. Each opens its own connection, in milliseconds, so no model is stale."""

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clients.classifier import Classifier, Prediction, ServedModel, list_models
from clients.errors import ModelNotFound
from clients.options import Options
from clients.served import best, check_labels
from clients.web.decoding import Decoder


@dataclass(frozen=True)
class Answer:
    prediction: Prediction
    model: str
    image: NDArray[np.uint8]  # (height, width), 0 = background, 255 = ink
    shapes: int
    preparation_ms: float


class Triton:
    """For any thread; without `preferred` the best transformer answers. `close` ends the process that decodes."""

    def __init__(self, options: Options, preferred: str | None = None) -> None:
        self._options = options
        self._preferred = preferred
        self._decoder = Decoder()
        self.close = self._decoder.close

    def models(self) -> tuple[list[ServedModel], str]:
        """The ready models of drawings, by name, and the preferred name.

        Raises the errors of Classifier, and ModelNotFound if the preferred model or every model is for photos.
        """
        ready = [each.model for each in list_models(self._options) if each.model is not None]
        of_ink = [model for model in ready if model.preprocessing == "ink"]
        if of_ink and not self._preferred:
            return of_ink, best(of_ink).name
        with Classifier(self._options, self._preferred) as classifier:
            _check_ink(classifier.model)
            return of_ink, classifier.model.name

    def ask(
        self, content: bytes, name: str | None, turn: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Answer:
        """Without `name` the preferred model answers the image file `content`; `turn` is entered while it is decoded.

        Raises InvalidImage, the errors of Classifier, and ModelNotFound for a model of photos, or if neither is named
        and the models have different labels.
        """
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):  # part of Triton's URLs
            raise ModelNotFound(f"expected the name of a model on the server, found {name!r}")
        with Classifier(self._options, name or self._preferred or self._default()) as classifier:
            _check_ink(classifier.model)
            start_ns = time.perf_counter_ns()
            images, shapes = self._decoder.prepare(content, classifier.model.image_shape, turn)
            preparation_ms = (time.perf_counter_ns() - start_ns) / 1e6
            (prediction,) = classifier.classify(images)
        return Answer(prediction, classifier.model.name, images[0, 0], shapes, preparation_ms)

    def _default(self) -> str:
        models, name = self.models()
        check_labels(models, self._options.addresses[0])
        return name


def _check_ink(model: ServedModel) -> None:
    if model.preprocessing != "ink":
        raise ModelNotFound(f"model {model.name!r}: expected a model of drawings, found a model of photos")
