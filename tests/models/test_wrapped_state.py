import pytest
import torch
from random_networks import network
from refused_files import PUBLISHED, under
from saved_networks import PUBLISHED_SHAPE, write_pth
from torch import nn
from torch.optim.swa_utils import AveragedModel

from models.checkpoints.checkpoint import load


class Holder(nn.Module):
    """Names the tensors as the study does."""

    def __init__(self):
        super().__init__()
        for name, tensor in PUBLISHED.items():
            owner = self
            *parents, leaf = name.split(".")
            for parent in parents:
                if not hasattr(owner, parent):
                    owner.add_module(parent, nn.Module())
                owner = getattr(owner, parent)
            owner.register_buffer(leaf, tensor.clone())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (PUBLISHED, ""),
        (under("module."), "names without their prefix module."),
        (under("model."), "names without their prefix model."),
        (under("module._orig_mod."), "names without their prefix module., names without their prefix _orig_mod."),
        ({"state_dict": PUBLISHED, "epoch": 3, "best": 0.9, "optimizer": {"state": {}}}, "the entry state_dict"),
        ({"model": under("module."), "epoch": 3}, "the entry model, names without their prefix module."),
        ({"state_dict_ema": PUBLISHED, "epoch": 3}, "the averaged weights of the entry state_dict_ema"),
        (AveragedModel(Holder()).state_dict(), "the averaged weights of an AveragedModel, names without their prefix"),
        (nn.DataParallel(Holder()).state_dict(), "names without their prefix module."),
    ],
)
def test_the_network_is_taken_out_of_its_wrapper(tmp_path, state, said):
    read = load(write_pth(tmp_path / "theirs.pth", state))
    torch.testing.assert_close(read.model.state_dict(), network(PUBLISHED_SHAPE).state_dict(), rtol=0, atol=0)
    assert read.note.startswith(said)
    assert bool(read.note) == bool(said)
