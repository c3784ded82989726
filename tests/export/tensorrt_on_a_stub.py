"""The command `tensorrt` on the stub device: `python tensorrt_on_a_stub.py MAJOR FOLDER`.

In: TensorRT's major version, 11 of this environment or 10 of `make bindings`; a folder with cases.json: by name a
planted fault and the command's arguments. Out: found.json in it: by name exit code, output and calls of TensorRT.
"""

import json
import sys
from pathlib import Path

from click.testing import CliRunner
from stub_device import install
from stub_tensorrt import FAULT, KINDS, USED, Conformant

BINDINGS_10 = Path(__file__).parents[2] / ".tensorrt"
# Calls of earlier TensorRTs, and what 11 says of them.
ABSENT = {
    "Conformant(Builder).create_network(flag=1)": "TypeError: create_network",
    "Conformant(Builder).build_engine": "AttributeError",
    "Conformant(IBuilderConfig).max_workspace_size": "AttributeError",
    "BuilderFlag.FP16": "AttributeError",
    "Conformant(IOptimizationProfile).set_shape('image', (1,), (2,))": "TypeError: set_shape",
    "Conformant(Builder).create_network(flags=1).num_inputs": "no error",
}


def evaluate(call: str) -> str:
    import tensorrt as trt

    try:
        eval(call, vars(trt) | KINDS | {"Conformant": Conformant})
    except (AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    major, folder = int(sys.argv[1]), Path(sys.argv[2])
    if major == 10:
        sys.path.insert(0, str(BINDINGS_10))
    install(folder, major)
    import tensorrt as trt

    from export.to_tensorrt import tensorrt

    found = {}
    for name, (planted, arguments) in json.loads((folder / "cases.json").read_text()).items():
        USED.clear()
        FAULT[:] = [planted]
        if planted == "another version":  # lacks a method in use
            del trt.IBuilderConfig.set_memory_pool_limit
        done = CliRunner().invoke(tensorrt, arguments)
        found[name] = [done.exit_code, done.output, USED[:]]
    (folder / "found.json").write_text(json.dumps(found | {"absent": {call: evaluate(call) for call in ABSENT}}))
