"""What the page asks of Triton: which models there are, and what one of them says of a picture.

Every question opens a connection of its own. That takes a few milliseconds, which nobody who draws can see, and needs
no lock between threads, no reconnecting after a restart, and no care for models that changed meanwhile.
"""

import io
import re
import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clients.classifier import Classifier, ModelNotFound, Prediction, ServedModel
from clients.decode import read_image
from clients.endpoint import Protocol
from clients.preprocess import to_model_input
from clients.served import best

TIMEOUT_S = 5.0  # for each request to Triton; the page itself gives up later


@dataclass(frozen=True)
class Answer:
    """What a model said of a picture, and what it was shown."""

    prediction: Prediction
    model: str
    image: NDArray[np.uint8]  # (height, width), 0 = background, 255 = ink
    preparation_ms: float  # from file to image


class Triton:
    """A Triton server, by its address; nothing is asked until a method is called, from whatever thread.

    url, protocol: as for Classifier.
    preferred:     the model that answers where none is named; without it the best transformer.
    """

    def __init__(self, url: str | None, protocol: Protocol, preferred: str | None = None) -> None:
        self._url = url
        self._protocol = protocol
        self._preferred = preferred
        self._decoding = threading.Lock()  # one picture at a time, for a huge one takes hundreds of megabytes

    def models(self) -> tuple[list[ServedModel], str]:
        """The models of drawings that can be asked, by name, and the name of the preferred one.

        Raises what Classifier raises; ModelNotFound where none reads drawings, or the preferred one reads photos.
        """
        with self._open(self._preferred) as classifier:
            ready = [each.model for each in classifier.models() if each.model is not None]
            preferred = classifier.model
        of_ink = [model for model in ready if model.preprocessing == "ink"]
        if not of_ink or self._preferred:
            _check_ink(preferred)
        return of_ink, (preferred if preferred.preprocessing == "ink" else best(of_ink)).name

    def ask(self, content: bytes, name: str | None) -> Answer:
        """What the model of this name, or the preferred one, says of an image file's content.

        Raises InvalidImage, what Classifier raises, and ModelNotFound for a model of photos.
        """
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):  # it becomes part of Triton's URLs
            raise ModelNotFound(f"expected the name of a model on the server, found {name!r}")
        with self._open(name or self._preferred or self.models()[1]) as classifier:
            _check_ink(classifier.model)
            with self._decoding:
                start_ns = time.perf_counter_ns()
                image = to_model_input(read_image(io.BytesIO(content)), classifier.model.image_shape[1:])
                preparation_ms = (time.perf_counter_ns() - start_ns) / 1e6
            (prediction,) = classifier.classify(image[None])
        return Answer(prediction, classifier.model.name, image[0], preparation_ms)

    def _open(self, name: str | None) -> Classifier:
        return Classifier(self._url, name, self._protocol, TIMEOUT_S, retry_s=0)  # who draws is told, and tries again


def _check_ink(model: ServedModel) -> None:
    if model.preprocessing != "ink":
        raise ModelNotFound(f"model {model.name!r}: expected one that reads drawings, found one of photos")
