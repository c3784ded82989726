import socket
import threading
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from infer_command import run
from stand_in import Certificates, StandIn

from clients.classifier import Classifier, Options, ServerUnavailable, Tls, list_models

DIGIT = str(Path(__file__).resolve().parents[2] / "digit.png")
PROTOCOLS = ["http", "grpc"]
IMAGES = np.zeros((9, 1, 28, 28), dtype=np.uint8)


@pytest.fixture
def certificates(certificate):
    return Certificates(*map(str, certificate))


@pytest.fixture(params=PROTOCOLS)
def server(request, certificates):
    with StandIn().serving(request.param, tls=certificates) as stand_in:
        yield stand_in


def connect(server, **files):
    return Classifier(server.options(retry_s=0, tls=Tls(**files)))


def test_client_and_server_verify_each_others_certificate(server, certificates):
    files = {"ca_file": certificates.certificate, "certificate_file": certificates.certificate}
    with connect(server, **files, key_file=certificates.key) as classifier:
        assert len(classifier.classify(IMAGES)) == 9
        assert [each.name for each in classifier.models()] == ["net"]
    tls = Tls(certificates.certificate, certificates.certificate, certificates.key)
    assert list_models(server.options(tls=tls))[0].model


def test_an_untrusted_or_unencrypted_connection_is_refused(server, certificates):
    with pytest.raises(ServerUnavailable, match=r"\(its certificate does not verify: self.signed certificate\); start"):
        connect(server)  # unknown authority
    with pytest.raises(ServerUnavailable, match="no Triton server answers"):
        connect(server, ca_file=certificates.certificate)  # no client certificate
    with pytest.raises(ServerUnavailable, match="no Triton server answers"):
        Classifier(server.options(retry_s=0))  # not encrypted


def test_invalid_tls_files_are_refused(tmp_path, certificates):
    with pytest.raises(ValueError, match="certificate and its key, found one without"):
        Tls(certificate_file=certificates.certificate)
    (tmp_path / "empty.pem").write_text("seven")
    for file, protocol in product(("empty.pem", "missing.pem"), PROTOCOLS):
        with pytest.raises(ServerUnavailable, match="expected PEM files for TLS"):
            Classifier(Options("127.0.0.1:1", protocol, retry_s=0, tls=Tls(ca_file=str(tmp_path / file))))


def test_a_server_that_ends_the_connection_instead_of_encrypting():
    def hang_up():
        peer, _ = listener.accept()
        peer.recv(4096)
        peer.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(ServerUnavailable, match=r"over http \(the connection ended\)"):
            Classifier(Options(f"127.0.0.1:{listener.getsockname()[1]}", retry_s=0, tls=Tls()))
        thread.join()


def test_the_command_line(server, certificates):
    arguments = (DIGIT, "--url", server.url, "--protocol", server.protocol)
    files = ["--ssl-ca", certificates.certificate, "--ssl-cert", certificates.certificate]
    files += ["--ssl-key", certificates.key]
    code, (answer,), errors = run(*arguments, *files)
    assert (code, answer.startswith(f"{DIGIT}: "), errors) == (0, True, [])
    code, _, errors = run(*arguments, "--ssl")
    assert (code, len(errors)) == (3, 1)
    code, _, errors = run(*arguments, *files[:4])
    assert (code, "key" in errors[-1]) == (2, True)
