"""The predicted order of gradients is the observed one."""

import pytest
import torch
import torchvision
from paceline import InvalidArgumentError
from paceline.torch.recorder.autograd_graph import autograd_graph, observed_order
from paceline_lab.plan import plan_graph
from torch import nn
from torch.utils.checkpoint import checkpoint


def agree(model, loss):
    """The graph, after its prediction has been verified."""
    result = autograd_graph(loss, model)
    with observed_order(model) as observed:
        loss.backward()
    assert list(result.order) == observed
    wanted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(result.order) | set(result.unused) == wanted and len(wanted) == len(result.order) + len(result.unused)
    planned = plan_graph(result.graph, bucket_size="1MB")
    assert sorted(tensor.name for tensor in planned.tensors) == sorted(result.order)
    by_time = plan_graph(result.graph, bucket_size="1MB", ids="listed")
    assert [tensor.name for tensor in by_time.tensors] == observed
    sizes = {name: parameter.numel() * parameter.element_size() for name, parameter in model.named_parameters()}
    assert all(tensor.bytes == sizes[tensor.name] for tensor in planned.tensors)
    return result


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenet_v3_small",
        pytest.param("resnet50", marks=pytest.mark.slow),
        pytest.param("densenet121", marks=pytest.mark.slow),
        pytest.param("vit_b_16", marks=pytest.mark.slow),
        pytest.param("swin_t", marks=pytest.mark.slow),
    ],
)
def test_models(name):
    size = 224 if name == "vit_b_16" else 64
    model = getattr(torchvision.models, name)(weights=None)
    assert not agree(model, model(torch.randn(2, 3, size, size)).sum()).unused


@pytest.mark.parametrize("checkpointed", [False, True])
def test_transformers(checkpointed):
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3, n_embd=48, n_head=4, vocab_size=200))
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    words = torch.randint(0, 200, (2, 16))
    agree(model, model(words, labels=words, use_cache=False).loss)


class Branches(nn.Module):
    """Shared and unused parameters, one of another dtype, one that is frozen, one without a layer, and checkpoints."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.unused = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.wide = nn.Linear(8, 8, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = self.first(x)
        x = self.inner(x) if self.reentrant is None else checkpoint(self.inner, x, use_reentrant=self.reentrant)
        x = self.first(x) + self.frozen(x) * self.scale
        return self.wide(x.double()).sum() + x.sum()


@pytest.mark.parametrize("reentrant", [None, False])
def test_unused_shared_and_checkpointed_parameters(reentrant):
    model = Branches(reentrant)
    result = agree(model, model(torch.randn(4, 8)))
    assert result.unused == ("unused.weight", "unused.bias")
    dtypes = {tensor.dtype for tensor in plan_graph(result.graph).tensors}
    assert dtypes == {"float32", "float64"}


def test_reentrant_checkpoints_hide_their_graph():
    model = Branches(True)
    loss = model(torch.randn(4, 8))
    with pytest.raises(
        InvalidArgumentError, match="the model uses reentrant checkpoints, which hide the graph inside them"
    ):
        autograd_graph(loss, model)
    with observed_order(model) as observed:
        loss.backward()
    assert {"inner.0.weight", "inner.2.bias"} <= set(observed)


def test_several_losses():
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    losses = [layer(torch.randn(2, 4)).sum() for layer in model]
    result = autograd_graph(losses, model)
    with observed_order(model) as observed:
        torch.autograd.backward(losses)
    assert list(result.order) == observed


def test_a_loss_without_a_graph():
    with pytest.raises(InvalidArgumentError, match="the loss has no graph"):
        autograd_graph(torch.zeros(()), nn.Linear(1, 1))


def test_observing_ends():
    model = nn.Linear(2, 2)
    with observed_order(model) as observed:
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()
    assert sorted(observed) == ["bias", "weight"]
