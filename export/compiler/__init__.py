"""Exact rewrites of any ONNX graph: the same answers, fewer multiplications. Imports nothing else of ours, no torch.

In: an `onnx_ir.Model`. Out: a model that multiplies less for the same outputs, or for the parts of them in `reads`:

    from export.compiler.pipeline import rewrite

    rewrite(onnx_ir.load("model.onnx"), reads=["last_hidden_state[:,0]"]).model

`pipeline` runs the `passes`. They use the graph (`graph`), what is known of each operator (`operators`) and what
follows from that for a graph (`analyses`). `proof` compares the rewritten graph with the original.
"""
