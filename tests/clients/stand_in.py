"""A server with Triton's two protocols; counts requests, fails on demand."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
from background import running
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from clients.options import Options

LABELS = ("a", "b", "c")
DESCRIPTION = {"model": "vitbn", "labels": LABELS, "image_size": [28, 28], "channels": 1}


def expected_logits(images: np.ndarray) -> np.ndarray:
    """Images (n, 1, 28, 28) -> float32 (n, 3)."""
    sums = images.sum(axis=(1, 2, 3), dtype=np.int64)
    return np.stack([sums % 5, sums % 7, sums % 11], axis=1).astype(np.float32)


class StandIn:
    """The model `net`; `serving` sets `protocol` and `url`.

    before:      gets each inference's number, from 0, in the server's thread; may return a refusal's message.
    parameters:  of the model's configuration.
    """

    def __init__(self, before: Callable[[int], str | None] = lambda number: None, max_batch_size: int = 4) -> None:
        self.before = before
        self.max_batch_size = max_batch_size
        self.parameters: dict[str, str] = {}
        self.headers: list[dict[str, str]] = []  # of each inference
        self.batches: list[int] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def infer(self, images: np.ndarray, headers: dict[str, str]) -> tuple[np.ndarray, str | None]:
        with self._lock:
            number = len(self.batches)
            self.batches.append(len(images))
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return expected_logits(images), self.before(number)
        finally:
            with self._lock:
                self._at_once -= 1

    def all_parameters(self) -> dict[str, str]:
        return {"model_config": json.dumps(DESCRIPTION), **self.parameters}

    @contextmanager
    def serving(
        self, protocol: str, address: str = "127.0.0.1:0", tls: "Certificates | None" = None
    ) -> Iterator["StandIn"]:
        """With `tls` only for clients with a certificate."""
        with (_http if protocol == "http" else _grpc)(self, address, tls) as port:
            self.protocol, self.url = protocol, f"127.0.0.1:{port}"
            yield self

    def options(self, **more: object) -> Options:
        return Options(self.url, self.protocol, **more)


@dataclass(frozen=True)
class Certificates:
    """PEM files, self-signed."""

    certificate: str
    key: str


@contextmanager
def _http(stand_in: StandIn, address: str, tls: Certificates | None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: a second packet waits 40 ms

        def do_GET(self) -> None:
            if self.path.endswith("/ready"):
                self._answer(b"")
            elif self.path.endswith("/config"):
                parameters = {key: {"string_value": value} for key, value in stand_in.all_parameters().items()}
                self._answer({"max_batch_size": stand_in.max_batch_size, "parameters": parameters})
            else:
                image = {"name": "image", "datatype": "UINT8", "shape": [-1, 1, 28, 28]}
                logits = {"name": "logits", "datatype": "FP32", "shape": [-1, len(LABELS)]}
                self._answer({"name": "net", "versions": ["1"], "inputs": [image], "outputs": [logits]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("/index"):
                return self._answer([{"name": "net", "version": "1", "state": "READY"}])
            start = int(self.headers["Inference-Header-Content-Length"])
            shape = json.loads(body[:start])["inputs"][0]["shape"]
            images = np.frombuffer(body, np.uint8, offset=start).reshape(shape)
            logits, refusal = stand_in.infer(images, {key.lower(): value for key, value in self.headers.items()})
            if refusal:
                return self._answer({"error": refusal}, status=503)
            output = {"name": "logits", "datatype": "FP32", "shape": logits.shape}
            output["parameters"] = {"binary_data_size": logits.nbytes}
            head = json.dumps({"model_name": "net", "model_version": "1", "outputs": [output]}).encode()
            return self._answer(head + logits.tobytes(), {"Inference-Header-Content-Length": str(len(head))})

        def _answer(self, body: object, headers: dict[str, str] | None = None, status: int = 200) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for key, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client went away

    host, _, port = address.rpartition(":")
    server = Server((host, int(port)), Handler)
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.certificate)
        context.load_cert_chain(tls.certificate, tls.key)
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server) as bound:
        yield bound


@contextmanager
def _grpc(stand_in: StandIn, address: str, tls: Certificates | None) -> Iterator[int]:
    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelReady(self, request, context):  # noqa: N802 (the protocol's name)
            return service_pb2.ModelReadyResponse(ready=True)

        def RepositoryIndex(self, request, context):  # noqa: N802
            model = service_pb2.RepositoryIndexResponse.ModelIndex(name="net", version="1", state="READY")
            return service_pb2.RepositoryIndexResponse(models=[model])

        def ModelMetadata(self, request, context):  # noqa: N802
            tensor = service_pb2.ModelMetadataResponse.TensorMetadata
            image = tensor(name="image", datatype="UINT8", shape=[-1, 1, 28, 28])
            logits = tensor(name="logits", datatype="FP32", shape=[-1, len(LABELS)])
            return service_pb2.ModelMetadataResponse(name="net", versions=["1"], inputs=[image], outputs=[logits])

        def ModelConfig(self, request, context):  # noqa: N802
            config = model_config_pb2.ModelConfig(max_batch_size=stand_in.max_batch_size)
            for key, value in stand_in.all_parameters().items():
                config.parameters[key].string_value = value
            return service_pb2.ModelConfigResponse(config=config)

        def ModelInfer(self, request, context):  # noqa: N802
            images = np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(request.inputs[0].shape)
            logits, refusal = stand_in.infer(images, dict(context.invocation_metadata()))
            if refusal:
                context.abort(grpc.StatusCode.UNAVAILABLE, refusal)
            response = service_pb2.ModelInferResponse(model_version="1", raw_output_contents=[logits.tobytes()])
            response.outputs.add(name="logits", datatype="FP32", shape=logits.shape)
            return response

    with ThreadPoolExecutor(32) as threads:
        server = grpc.server(threads)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            certificate, key = Path(tls.certificate).read_bytes(), Path(tls.key).read_bytes()
            credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
            port = server.add_secure_port(address, credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()
