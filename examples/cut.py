"""A network loses its dead units and proves that nothing changed.

    python examples/cut.py

Everything is done in float64, so that a difference would be seen, and written to runs/cut.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import autowidth as aw

SHARE = 0.4  # of the units of every free axis
RUNS = Path(__file__).resolve().parents[1] / "runs" / "cut"


class Block(nn.Module):
    """Two convolutions beside a shortcut: the last one writes the same units as the stream it is added to."""

    def __init__(self, before: int, width: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Net(nn.Module):
    """A small residual network for images of 3 x 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.Sequential(Block(32, 48, 32, 1), Block(32, 96, 64, 2), Block(64, 128, 64, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


def build() -> Net:
    return Net().double()


def used(model: nn.Module, x: Tensor) -> nn.Module:
    """A few forward passes in train mode and shaken norms, so that no statistic is at its default."""
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
    with torch.no_grad():
        for _ in range(3):
            model(x + 0.1 * torch.randn_like(x))
    return model.eval()


def some_units(size: int) -> list[int]:
    return sorted(torch.randperm(size)[: int(SHARE * size)].tolist())


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def main(out: Path = RUNS) -> None:
    torch.manual_seed(0)
    console = Console()
    x = torch.randn(8, 3, 32, 32, dtype=torch.float64)
    model = used(build(), x)

    graph = aw.trace(model, (x,))
    dead = {axis.name: some_units(axis.size) for axis in graph.free}
    graph.kill_(model, dead)  # in place of a training that ends with dead units
    small = aw.compact(model, aw.make_plan(model, graph)).eval()

    table = Table("axis", title=f"{SHARE:.0%} of every free axis is dead, and goes")
    for heading in ("width before", "after"):
        table.add_column(heading, justify="right")
    for axis in graph.free:
        table.add_row(axis.name, str(axis.size), str(axis.size - len(dead[axis.name])))
    table.add_section()
    table.add_row("parameters", f"{parameters(model):,}", f"{parameters(small):,}")
    console.print(table)

    with torch.no_grad():
        before, after = model(x), small(x)
    largest = (before - after).abs().max().item()
    console.print(f"largest output difference in float64: {largest:.1e}, of outputs up to {before.abs().max():.1f}")
    console.print(str(aw.verify(model, small, (x,))))

    out.mkdir(parents=True, exist_ok=True)
    path = out / "compact.safetensors"
    aw.save(small, path)
    loaded = aw.load(path, build=build).eval()  # a fresh full-size network, cut by the plan in the file
    with torch.no_grad():
        same = torch.equal(loaded(x), after)
    if not same:
        raise SystemExit(f"the network loaded from {path} gives other bits than the saved one")
    console.print(f"saved ({path.stat().st_size:,} bytes) and loaded into a fresh network: equal bits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A network loses its dead units and proves that nothing changed.")
    parser.add_argument("--out", type=Path, default=RUNS, help="folder for the compact network (%(default)s)")
    main(parser.parse_args().out)
