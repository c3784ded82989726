"""The application: the page's files and its two questions, every failure one line of JSON.

GET  /                         the page
GET  /api/models               the models on the server, the preferred one, and which files are accepted
POST /api/classify?model=NAME  an image file as the body -> what the model says, and the image that it saw
"""

import math
from pathlib import Path

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import (
    BadRequest,
    Forbidden,
    HTTPException,
    TooManyRequests,
    UnsupportedMediaType,
)

from clients.classifier import ModelNotFound
from clients.decode import ClientError, InvalidImage
from clients.web.asking import Triton
from clients.web.guards import HEADERS, RateLimit, foreign_host, foreign_site

BODY_BYTES = 10_000_000
# None of these can be sent by a form of another site without the browser asking us first.
TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/avif")


def create_app(triton: Triton, rate: RateLimit, host: str = "127.0.0.1") -> Flask:
    """The WSGI application that asks `triton`; `host` is the name under which it may be reached, beside addresses."""
    app = Flask("clients.web", static_folder=Path(__file__).with_name("static"), static_url_path="/static")
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES
    app.url_map.merge_slashes = False  # answered by a redirect

    @app.before_request
    def guard() -> None:
        _check_sender(host)
        if request.path.startswith("/api/"):
            _check_rate(rate)

    @app.after_request
    def protect(response: Response) -> Response:
        response.headers.update(HEADERS)
        if request.path.startswith("/api/"):
            response.headers["Cache-Control"] = "no-store"
        return response

    @app.get("/")
    def page() -> Response:
        return app.send_static_file("page.html")

    @app.get("/api/models")
    def models() -> Response:
        return _models(triton)

    @app.post("/api/classify")
    def classify() -> Response:
        return _classify(triton)

    app.register_error_handler(HTTPException, _failure)
    app.register_error_handler(ClientError, _client_failure)
    return app


def _check_sender(host: str) -> None:
    named = request.headers.get("Host", "")
    reason = foreign_host(named, host)
    if reason is None and request.path.startswith("/api/"):  # a link to the page may stand anywhere
        reason = foreign_site(named, request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site"))
    if reason is not None:
        raise Forbidden(reason)


def _check_rate(rate: RateLimit) -> None:
    wait_s = math.ceil(rate.wait_s(request.remote_addr or ""))
    if wait_s > 0:
        raise TooManyRequests(f"too many requests from this address; the next is answered in {wait_s} s", None, wait_s)


def _models(triton: Triton) -> Response:
    models, preferred = triton.models()
    described = [
        {"name": model.name, "family": model.family, "test_accuracy": model.test_accuracy, "labels": model.labels}
        for model in models
    ]
    return jsonify(models=described, preferred=preferred, accepts={"types": TYPES, "bytes": BODY_BYTES})


def _classify(triton: Triton) -> Response:
    if request.mimetype not in TYPES:
        raise UnsupportedMediaType(f"Content-Type: expected {', '.join(TYPES)}, found {request.mimetype!r}")
    content = request.get_data()
    if not content:
        raise BadRequest("expected an image file as the body, found nothing")
    answer = triton.ask(content, request.args.get("model") or None)
    return jsonify(
        label=answer.prediction.label,
        probability=answer.prediction.probability,
        labels=answer.prediction.labels,
        probabilities=answer.prediction.probabilities,
        model=answer.model,
        version=answer.prediction.version,
        image=answer.image.tolist(),
        preparation_ms=round(answer.preparation_ms, 3),
        inference_ms=round(answer.prediction.latency_ms, 3),
    )


def _failure(error: HTTPException) -> Response:
    """The answer of an HTTP error, with its headers and one line of JSON as the body; a fault of ours comes as 500."""
    response = Response(status=error.code, headers=error.get_headers())
    response.data = jsonify(error=" ".join((error.description or error.name).split())).data
    response.content_type = "application/json"
    return response


def _client_failure(error: ClientError) -> tuple[Response, int]:
    status = 422 if isinstance(error, InvalidImage) else 404 if isinstance(error, ModelNotFound) else 503
    return jsonify(error=str(error)), status
