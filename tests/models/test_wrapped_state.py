import pytest
import torch
from commands import ok
from random_networks import network
from saved_networks import PUBLISHED_SHAPE, VITBN_NAMES, published
from torch import nn
from torch.optim.swa_utils import AveragedModel

from export.to_onnx import export
from models.checkpoint import CheckpointError, load

WRITTEN = network(PUBLISHED_SHAPE)
STATE = published(WRITTEN, VITBN_NAMES)
OTHER = {name: tensor + 1 for name, tensor in STATE.items()}


def under(prefix, state=STATE):
    return {prefix + name: tensor for name, tensor in state.items()}


class Holder(nn.Module):
    """Names the tensors as the study does."""

    def __init__(self):
        super().__init__()
        for name, tensor in STATE.items():
            owner = self
            *parents, leaf = name.split(".")
            for parent in parents:
                if not hasattr(owner, parent):
                    owner.add_module(parent, nn.Module())
                owner = getattr(owner, parent)
            owner.register_buffer(leaf, tensor.clone())


def write(path, state):
    torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (STATE, ""),
        (under("module."), "names without their prefix module."),
        (under("model."), "names without their prefix model."),
        (under("module._orig_mod."), "names without their prefix module., names without their prefix _orig_mod."),
        ({"state_dict": STATE, "epoch": 3, "best": 0.9, "optimizer": {"state": {}}}, "the entry state_dict"),
        ({"model": under("module."), "epoch": 3}, "the entry model, names without their prefix module."),
        ({"state_dict_ema": STATE, "epoch": 3}, "the averaged weights of the entry state_dict_ema"),
        (AveragedModel(Holder()).state_dict(), "the averaged weights of an AveragedModel, names without their prefix"),
        (nn.DataParallel(Holder()).state_dict(), "names without their prefix module."),
    ],
)
def test_the_network_is_taken_out_of_its_wrapper(tmp_path, state, said):
    read = load(write(tmp_path / "theirs.pth", state))
    torch.testing.assert_close(read.model.state_dict(), WRITTEN.state_dict(), rtol=0, atol=0)
    assert read.note.startswith(said)
    assert bool(read.note) == bool(said)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"state_dict": STATE, "state_dict_ema": OTHER}, "expected one network, found state_dict and state_dict_ema"),
        (under("model.") | under("ema_model.", OTHER), "expected one network, found names of model. and ema_model."),
    ],
)
def test_two_networks_are_refused(tmp_path, state, said):
    with pytest.raises(CheckpointError, match=f"theirs.pth: {said}"):
        load(write(tmp_path / "theirs.pth", state))


def test_the_old_form_of_pytorch_is_refused_in_plain_words(tmp_path):
    torch.save(STATE, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(
        CheckpointError, match=r"old\.pth: expected a zip file, as torch.save writes since PyTorch 1\.6"
    ):
        load(tmp_path / "old.pth")


@pytest.mark.slow
def test_export_says_what_it_took(tmp_path):
    path = write(tmp_path / "theirs.pth", {"state_dict": under("module.")})
    told = ok(export, "--checkpoint", path, "--output", tmp_path / "model.onnx")
    assert "Note: taken from the file: the entry state_dict, names without their prefix module." in told.stderr
