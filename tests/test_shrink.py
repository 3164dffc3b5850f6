"""Cut in the middle of training: the next ten steps are those of the uncut network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

import autowidth as aw

Make = Callable[[list[nn.Parameter]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD with momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD, foreach": lambda p: SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: SGD(p, lr=0.05, momentum=0.9, fused=True),
    "Adam": lambda p: Adam(p, lr=1e-2, amsgrad=True),
    "Adam, fused": lambda p: Adam(p, lr=1e-2, fused=True),
    "AdamW": lambda p: AdamW(p, lr=1e-2),
    "AdamW, foreach": lambda p: AdamW(p, lr=1e-2, foreach=True),
    "RMSprop": lambda p: RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda p: Adagrad(p, lr=1e-2),
    # Gently: at its default rate one rounding of the weights moves this loss by 2e-12 within ten steps, cut or not.
    "NAdam": lambda p: NAdam(p, lr=1e-4),
}


class Net(nn.Module):
    """A residual network with batch norm, whose every unit passes a ReLU: a dead unit gets no gradient.

    No bias before a norm: its gradient is rounding noise, which Adam would blow up to whole steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.a, self.a_norm = nn.Conv2d(6, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5)
        self.b, self.b_norm = nn.Conv2d(5, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.hidden, self.head = nn.Linear(6 * 4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        y = torch.relu(self.a_norm(self.a(x)))
        x = torch.relu(x + self.b_norm(self.b(y)))
        return self.head(torch.relu(self.hidden(x.flatten(1))))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(16, 2, 2, 2, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (16,), generator=generator),
        )
        for _ in range(count)
    ]


def train(model: nn.Module, optimizer: Optimizer, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    losses = []
    for x, y in data:
        loss = nn.functional.cross_entropy(model.train()(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def forget_(model: nn.Module, optimizer: Optimizer, plan: aw.Plan) -> None:
    """Zero the momentum of dead units, as a proximal step does: else they would move again in the uncut network."""
    tensors = dict(model.named_parameters())
    for cut in plan.cuts:
        gone = torch.tensor([p for p in range(cut.size) if p not in cut.keep])
        for value in optimizer.state.get(tensors.get(cut.tensor), {}).values():
            if isinstance(value, Tensor) and value.shape == tensors[cut.tensor].shape:
                value.index_fill_(cut.dim, gone, 0.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_been_cut(name: str) -> None:
    torch.manual_seed(0)
    model = Net().double()
    graph = aw.trace(model, torch.randn(4, 2, 2, 2, dtype=torch.float64))
    assert sorted(a.size for a in graph.free) == [5, 6, 8]
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    data = batches(15)
    train(model, optimizer, data[:5])
    graph.kill_(model, {a.name: [0, 3] for a in graph.free})
    plan = aw.make_plan(model, graph)
    forget_(model, optimizer, plan)
    small = copy.deepcopy(model)
    small_optimizer = OPTIMIZERS[name](list(small.parameters()))
    small_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    aw.shrink_(small, small_optimizer, plan)

    assert small.a.out_channels == 3
    assert train(small, small_optimizer, data[5:]) == pytest.approx(train(model, optimizer, data[5:]), abs=1e-12)
    x = data[0][0]
    assert aw.verify(model, small, x).relative < 1e-12
    cut = aw.compact(model, aw.make_plan(model, graph))
    for key, value in cut.state_dict().items():
        torch.testing.assert_close(small.state_dict()[key], value, rtol=0, atol=1e-12)
    for p, q in zip(small.parameters(), cut.parameters(), strict=True):
        for state in small_optimizer.state[p].values():
            assert not isinstance(state, Tensor) or state.shape in (torch.Size([]), q.shape)


def test_lbfgs_is_refused_with_the_reason() -> None:
    model = Net().double()
    graph = aw.trace(model, torch.randn(4, 2, 2, 2, dtype=torch.float64))
    graph.kill_(model, {graph.free[0].name: [0]})
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(aw.OptimizerError, match="LBFGS cannot be cut in mid-training: its state is one flat history"):
        aw.shrink_(model, torch.optim.LBFGS(model.parameters()), aw.make_plan(model, graph))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
