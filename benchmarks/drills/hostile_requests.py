"""Inference requests over HTTP that the proxy must refuse: they end Triton or evade the guard. Also good requests.

Triton 2.51 ends or never answers after a huge shape with JSON data, deep nesting, a body of 2^63 bytes, or a body in
600,000 chunks.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

Request = tuple[bytes, dict[str, str]]
LENGTH = "Inference-Header-Content-Length"
TIMEOUT_S = 30.0
CHUNKS = 600_000  # 300,000 do not end Triton


def send(
    url: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Sends a request over a new connection. Returns the answer's status and content.

    `url`: host:port. Raises OSError and http.client.HTTPException.
    """
    with closing(http.client.HTTPConnection(url, timeout=TIMEOUT_S)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()


def status(url: str, path: str, body: bytes, headers: Mapping[str, str]) -> int:
    """The HTTP status of the answer to a POST, 0 without an answer."""
    try:
        return send(url, "POST", path, body, headers)[0]
    except (OSError, http.client.HTTPException):
        return 0


def good(images: NDArray[np.uint8], header: str | None = None, **more: Any) -> Request:
    """A request with `images` uint8 (B, 1, 28, 28) in binary form.

    `header` replaces the JSON header; `more` changes fields of the tensor in it.
    """
    content = images.tobytes()
    tensor: dict[str, Any] = {"name": "image", "shape": list(images.shape), "datatype": "UINT8"}
    tensor |= {"parameters": {"binary_data_size": len(content)}, **more}
    text = json.dumps({"inputs": [tensor], "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]})
    head = (text if header is None else header).encode()
    return head + content, {LENGTH: str(len(head))}


def chunked() -> Request:
    """A request with more images than a model takes, in at least CHUNKS chunks of a byte."""
    body, headers = good(np.zeros((CHUNKS // 784 + 1, 1, 28, 28), np.uint8))
    chunks = b"".join(b"1\r\n" + body[index : index + 1] + b"\r\n" for index in range(len(body)))
    return chunks + b"0\r\n\r\n", {**headers, "Transfer-Encoding": "chunked"}


def requests() -> dict[str, Request]:
    """Name -> body and headers of a request that the proxy must refuse."""
    image = np.zeros((1, 1, 28, 28), np.uint8)
    body, headers = good(image)
    text = body[: int(headers[LENGTH])].decode()
    as_json = {"name": "image", "shape": [1, 1, 28, 28], "datatype": "UINT8", "data": [0] * 784}
    huge = {**as_json, "shape": [2147483648, 1, 28, 28], "data": [0]}
    data = json.dumps({"inputs": [as_json]}).encode()
    return {
        "huge shape with JSON data": (json.dumps({"inputs": [huge]}).encode(), {}),
        "150,000 open brackets": (b"[" * 150_000, {}),
        "150,000 open brackets as header": (b"[" * 150_000, {LENGTH: "150000"}),
        "body of 2^63 bytes": (b"{}", {"Content-Length": str(2**63)}),
        "JSON data": (data, {LENGTH: str(len(data))}),
        "huge shape": good(image, shape=[2147483648, 1, 28, 28]),
        "large product": good(image, shape=[65536, 65536, 1, 1]),
        "negative shape": good(image, shape=[-1, 1, 28, 28]),
        "fraction": good(image, text.replace("[1, 1, 28, 28]", "[1e9, 1, 28, 28]")),
        "hidden key": good(image, text.replace('"shape"', '"sh\\u0061pe"')),
        "data besides the tensor": good(image, text.replace('"datatype"', '"data": [1], "datatype"')),
        "more bytes than there are": good(image, text.replace(": 784", ": 784784784784784")),
        "shared memory": good(image, parameters={"shared_memory_region": "x", "shared_memory_byte_size": 784}),
        "compressed": (body, {**headers, "Content-Encoding": "gzip"}),
        "long header": good(image, text + " " * 5000),
        "no binary part": (body, {LENGTH: "0"}),
        "header beyond the body": (b"{}", {LENGTH: "100"}),
    }
