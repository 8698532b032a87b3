"""A small model that sleeps on one rank, and the durations of a script's steps."""

import os
import time

import torch
from torch import nn

SLEEP_S = 0.15
STEPS = 11  # two to find the model, one more of warm-up, four recorded, four without hooks
ROWS = 16
RANK = int(os.environ["RANK"])

torch.set_num_threads(1)


class Sleepy(nn.Module):
    """Of the forward pass, on rank 1."""

    def forward(self, x):
        if RANK == 1:
            time.sleep(SLEEP_S)
        return x


class Net(nn.Module):
    """With buffers, which DistributedDataParallel broadcasts before each step."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), Sleepy(), nn.BatchNorm1d(256), nn.Linear(256, 512))
        self.head = nn.Linear(512, 8)

    def forward(self, x):
        return self.head(self.body(x))


def train(net, optimizer):
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(ROWS, 64)).sum().backward()
        optimizer.step()
