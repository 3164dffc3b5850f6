"""The true width is found: where it is known, what the penalty leaves is what is needed, and nothing else dies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autowidth as aw
import planted

LAM = 0.05


def regress(problem: planted.Regression, penalty: aw.GroupLasso | aw.MCP) -> tuple[torch.Tensor, nn.Module]:
    """Gradient descent on all samples, to the end: [W, b] of every neuron, and what `compact` makes of it."""
    neurons, inputs = len(problem.readout), problem.x.shape[1]
    model = nn.Sequential(nn.Linear(inputs, neurons), nn.Linear(neurons, neurons, bias=False)).double()
    model[1].weight = nn.Parameter(problem.readout.clone(), requires_grad=False)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.2)
    widths = aw.AutoWidth(model, optimizer, problem.x[:2], penalty=penalty)
    for _ in range(400):
        loss = 0.5 * (model(problem.x) - problem.y).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach(), widths.compact()


@pytest.mark.parametrize("seed", range(3))
def test_only_irrelevant_neurons_of_a_linear_regression_die(seed: int) -> None:
    problem = planted.regression(seed)
    found, small = regress(problem, aw.GroupLasso(lam=LAM))

    assert found.any(1).nonzero().flatten().tolist() == problem.needed.tolist()
    assert small[0].out_features == len(problem.needed)
    # and the survivors are the optimum: least squares, each neuron shrunk by lambda sqrt(P)
    norms = problem.least_squares.norm(dim=1, keepdim=True)
    threshold = LAM * found.shape[1] ** 0.5
    torch.testing.assert_close(found, problem.least_squares * (1 - threshold / norms).clamp(min=0))


def test_mcp_leaves_the_relevant_neurons_of_a_linear_regression_unbiased() -> None:
    problem = planted.regression(seed=0)
    found, _ = regress(problem, aw.MCP(lam=LAM, knot=0.5))

    assert found.any(1).nonzero().flatten().tolist() == problem.needed.tolist()
    torch.testing.assert_close(found[problem.needed], problem.least_squares[problem.needed])


@pytest.mark.parametrize("seed", range(5))
def test_a_student_of_64_neurons_finds_the_8_of_its_teacher(seed: int) -> None:
    found = planted.learn(seed, planted.CHOSEN)

    assert found.width == planted.TEACHER
    assert found.r2 >= 0.999
