"""Calls that control a server, sent without its key, as a foreign web page could send them. The server must refuse all.

In: a server. Out: the HTTP status of each call, and whether code ran that a call carried.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.drills.drill_setup import MODEL, DrillBench, supervisor_actions
from benchmarks.drills.hostile_requests import status
from benchmarks.measure.result_file import Row

REFUSED = 403
# With these headers a browser sends a request to another site without asking the site first.
PAGE = {"Content-Type": "text/plain", "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
CODE = """
from pathlib import Path
Path({mark!r}).touch()
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
TENSOR = {"name": "x", "data_type": "TYPE_UINT8", "dims": [1]}
EVIL = {"name": "evil", "backend": "python", "input": [TENSOR], "output": [{**TENSOR, "name": "y"}]}


def calls(mark: Path, model: str = MODEL) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of a call -> path and content. Loaded code would create the file `mark`. The most harmful calls are last."""
    code = base64.b64encode(CODE.format(mark=str(mark)).encode()).decode()
    load = {"parameters": {"config": json.dumps(EVIL), "file:1/model.py": code}}
    region = {"key": "/foreign", "offset": 0, "byte_size": 784}
    cuda = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 16}
    return {
        "list models": ("repository/index", {}),
        "load code": ("repository/models/evil/load", load),
        "map shared memory": ("systemsharedmemory/region/foreign/register", region),
        "map GPU memory": ("cudasharedmemory/region/foreign/register", cuda),
        "trace": ("trace/setting", {"trace_level": ["TENSORS"], "trace_rate": "1"}),
        "fill the log": ("logging", {"log_verbose_level": 99999999999}),
        "load the served model": (f"repository/models/{model}/load", {}),
        "unload the served model": (f"repository/models/{model}/unload", {}),
    }


def send(server_url: str, mark: Path, model: str = MODEL) -> dict[str, int]:
    """Sends the calls. Returns name of a call -> HTTP status, 0 without an answer."""
    return {
        name: status(server_url, f"/v2/{path}", json.dumps(content).encode(), PAGE)
        for name, (path, content) in calls(mark, model).items()
    }


def foreign_calls(bench: DrillBench) -> Row:
    """Sends the calls while other clients send steady requests."""
    with tempfile.TemporaryDirectory() as folder, bench.server() as server, bench.traffic(server) as verdicts:
        mark = Path(folder, "ran")
        statuses = send(server.http_url, mark)
        code_ran = mark.exists()
        actions = supervisor_actions(server)
    open_calls = sum(status != REFUSED for status in statuses.values())
    return {**verdicts.row(), "calls": len(statuses), "open_calls": open_calls, "code_ran": code_ran, **actions}
