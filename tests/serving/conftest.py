from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import IMAGE, LOGITS, ONE_INSTANCE, table_model, write_model

from serving.local_server import Server, running_server

TOTAL = 'output [{ name: "total" data_type: TYPE_FP32 dims: [1] }]'
# Long enough for requests to meet in a batch.
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 300000 preferred_batch_size: [8] }"
OWN_PARAMETERS = """
    parameters { key: "intra_op_thread_count" value { string_value: "1" } }
    parameters { key: "model_config" value { string_value: "{\\"depth\\": 6}" } }
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In Triton's default mode, in a folder of an odd name; `patient` waits for a batch."""
    repository: Path = tmp_path_factory.mktemp("Größe und Maß")
    write_model(repository, config=f"max_batch_size: 64 {IMAGE} {LOGITS} {ONE_INSTANCE} {OWN_PARAMETERS}")
    write_model(repository, "patient", config=f"max_batch_size: 8 {IMAGE} {LOGITS} {TOTAL} {ONE_INSTANCE} {BATCHING}")
    row = 'input [{ name: "row" data_type: TYPE_INT64 dims: [1] }]'
    values = 'output [{ name: "values" data_type: TYPE_FP32 dims: [1, 3] }]'
    write_model(repository, "table", table_model(), f"max_batch_size: 8 {row} {values} {ONE_INSTANCE} {BATCHING}")
    with running_server(repository) as running:
        yield running
