"""Short trainings for tests: a tiny network, a few digits."""

import torch

from models.checkpoints.checkpoint import load
from models.data import load_digits
from models.networks.config import ModelConfig
from models.training.loop import train
from models.training.recipe import TrainingOptions

TINY = ModelConfig(dim=16, depth=1, heads=2, dim_head=8, mlp_dim=24)
OPTIONS = TrainingOptions(epochs=3, batch_size=50, lr=0.003, seed=0, device="cpu")


def first_digits(count):
    return load_digits().first(count)


def silent(images, loss):
    pass


def run(path, dataset, options=OPTIONS, config=TINY, resume=False, on_batch=silent):
    return list(train(config, dataset, options, path, resume, on_batch))


def series(epochs):
    return [(epoch.epoch, epoch.training_loss, epoch.test_accuracy) for epoch in epochs]


def assert_identical(first, second):
    states = [load(path).model.state_dict() for path in (first, second)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
