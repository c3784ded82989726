"""The Flask application: the page's files and two requests. Every failure is a line of JSON.

GET  /                         the page
GET  /api/models               the models, the preferred model, the other models with reasons, the accepted files
POST /api/classify?model=NAME  an image file as the body -> the prediction, and the image that the model saw

waitress serves the application, with limits for threads, connections and sizes. It does not end the connections of slow
senders; the proxy does (`vitbn proxy --page`).
"""

import logging
import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flask import Flask, Response, jsonify, request
from numpy.typing import NDArray
from waitress.server import create_server
from werkzeug.exceptions import (
    BadRequest,
    Forbidden,
    HTTPException,
    NotFound,
    RequestEntityTooLarge,
    TooManyRequests,
    UnsupportedMediaType,
)
from werkzeug.routing import RequestRedirect

from clients.errors import CannotListen, ClientError, InvalidImage, ModelNotFound
from clients.web.guards import HEADERS, RateLimit, host_refusal, rate_limit_key, site_refusal
from clients.web.triton_requests import Triton
from common.files import reason

BODY_BYTES = 10_000_000
THREADS, CONNECTIONS = 4, 600
IDLE_S = 30  # a connection that has sent no byte for so long is closed
HEADER_BYTES, LARGEST_BODY = 32_768, 50_000_000  # waitress refuses larger bodies; the application's own limit is lower
BACKLOG = 1024  # connections that wait to be accepted
TOKEN_S = 0.025  # seconds of decoding for a token: at 10 tokens a second a client has a quarter of the decoder
# Before another site may send these types, browsers ask this server (CORS), which does not allow it.
TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/avif")


def create_app(triton: Triton, rate: RateLimit, host: str = "127.0.0.1") -> Flask:
    """The application. It refuses requests whose Host header is neither `host` nor localhost nor an IP address."""
    app = Flask("clients.web", static_folder=Path(__file__).with_name("static"), static_url_path="/static")
    app.url_map.merge_slashes = False  # it would answer with a redirect

    @app.before_request
    def guard() -> None:
        _check_sender(host)
        if isinstance(request.routing_exception, RequestRedirect):  # werkzeug's answer to an empty path
            raise NotFound
        if request.path.startswith("/api/"):
            _check_rate(rate, tokens=1)

    @app.after_request
    def protect(response: Response) -> Response:
        response.headers.update(HEADERS)
        if request.path.startswith("/api/"):
            response.headers["Cache-Control"] = "no-store"
        return response

    @app.get("/")
    def page() -> Response:
        return app.send_static_file("page.html")

    app.add_url_rule("/api/models", view_func=partial(_models, triton), endpoint="models")
    app.add_url_rule("/api/classify", view_func=partial(_classify, triton, rate), endpoint="classify", methods=["POST"])
    app.register_error_handler(HTTPException, _http_failure)
    app.register_error_handler(ClientError, _client_failure)
    return app


def _check_sender(host: str) -> None:
    """Raises Forbidden for requests of other sites."""
    host_header = request.headers.get("Host", "")
    reason = host_refusal(host_header, host)
    if reason is None and request.path.startswith("/api/"):  # other sites may link to the page
        reason = site_refusal(host_header, request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site"))
    if reason is not None:
        raise Forbidden(reason)


def _check_rate(rate: RateLimit, tokens: float) -> None:
    """Takes the tokens of the request's client. Raises TooManyRequests if the client has too few."""
    wait_s = math.ceil(rate.wait_s(rate_limit_key(request.remote_addr or ""), tokens))
    if wait_s > 0:
        raise TooManyRequests(f"too many requests from this address; the next is answered in {wait_s} s", None, wait_s)


@contextmanager
def _charging(rate: RateLimit) -> Iterator[None]:
    """Charges the request's client for the time inside the context.

    Raises TooManyRequests if earlier requests have left the client in debt.
    """
    _check_rate(rate, tokens=0)
    started_s = time.monotonic()
    try:
        yield
    finally:
        rate.charge(rate_limit_key(request.remote_addr or ""), (time.monotonic() - started_s) / TOKEN_S)


def _models(triton: Triton) -> Response:
    models = triton.models()
    fields = ("name", "family", "test_accuracy", "labels", "preprocessing")
    return jsonify(
        models=[{field: getattr(model, field) for field in fields} for model in models.ready],
        preferred=models.preferred,
        left_out=[{"name": name, "reason": reason} for name, reason in models.left_out],
        accepts={"types": TYPES, "bytes": BODY_BYTES},
    )


def _classify(triton: Triton, rate: RateLimit) -> Response:
    if request.mimetype not in TYPES:
        raise UnsupportedMediaType(f"Content-Type: expected {', '.join(TYPES)}, found {request.mimetype!r}")
    if (request.content_length or 0) > BODY_BYTES:
        raise RequestEntityTooLarge(f"expected a picture of at most {BODY_BYTES / 1e6:g} MB, found a larger body")
    content = request.get_data()
    if not content:
        raise BadRequest("expected a picture file as the body, found an empty body")
    model, prediction, prepared, preparation_ms = triton.ask(
        content, request.args.get("model") or None, lambda: _charging(rate)
    )
    return jsonify(
        label=prediction.label,
        probability=prediction.probability,
        rejected=model.rejects(prediction.evidence, prepared.suits),
        labels=prediction.labels,
        probabilities=prediction.probabilities,
        model=model.name,
        version=prediction.version,
        image=_pixel_rows(prepared.image),
        shapes=prepared.shapes,
        notes=prepared.notes,
        preparation_ms=round(preparation_ms, 3),
        inference_ms=round(prediction.latency_ms, 3),
    )


def _pixel_rows(image: NDArray[np.uint8]) -> list[list[Any]]:
    """uint8 (1 or 3, H, W) -> H rows of W grey levels, or of W lists of red, green and blue."""
    rows: list[list[Any]] = (image[0] if len(image) == 1 else image.transpose(1, 2, 0)).tolist()
    return rows


def _http_failure(error: HTTPException) -> Response:
    response = Response(status=error.code, headers=error.get_headers())
    response.data = jsonify(error=" ".join((error.description or error.name).split())).data
    response.content_type = "application/json"
    return response


def _client_failure(error: ClientError) -> tuple[Response, int]:
    status = 422 if isinstance(error, InvalidImage) else 404 if isinstance(error, ModelNotFound) else 503
    return jsonify(error=str(error).removeprefix("image: ")), status


def open_server(app: Flask, host: str, port: int, behind_proxy: bool = False) -> Any:
    """Listens on the first address of `host`, at `port` (0: a free port). Raises CannotListen.

    behind_proxy: the client's address is read from the proxy's header X-Forwarded-For.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # else it warns of waiting requests, which are normal
    trusted: dict[str, Any] = {"trusted_proxy": "*", "trusted_proxy_headers": {"x-forwarded-for"}}
    return create_server(
        app,
        sockets=[_listen(host, port)],
        threads=THREADS,
        backlog=BACKLOG,
        connection_limit=CONNECTIONS,  # further connections wait to be accepted
        channel_timeout=IDLE_S,
        cleanup_interval=5,  # seconds
        asyncore_use_poll=True,  # select() ends at 1,024 descriptors
        max_request_header_size=HEADER_BYTES,
        max_request_body_size=LARGEST_BODY,
        log_socket_errors=False,  # else it logs clients that disconnect
        ident=None,
        **(trusted if behind_proxy else {}),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"cannot listen on {host!r}, port {port}: {reason(error)}; see --host and --port") from error
