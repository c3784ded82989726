"""Requests as clients and strangers send them to the proxy."""

import http.client
import json
from contextlib import closing
from typing import Any

import numpy as np

Answer = tuple[int, bytes]


def send(url: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
    """Status and body; the connection is not used again."""
    with closing(http.client.HTTPConnection(url, timeout=30)) as connection:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def binary(images: np.ndarray, header: str | None = None, **more: Any) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference; `header` replaces its JSON header, `more` its tensor's fields."""
    content = images.tobytes()
    tensor = {"name": "image", "shape": list(images.shape), "datatype": "UINT8"}
    tensor |= {"parameters": {"binary_data_size": len(content)}, **more}
    text = json.dumps({"inputs": [tensor], "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]})
    head = (text if header is None else header).encode()
    return head + content, {"Inference-Header-Content-Length": str(len(head))}
