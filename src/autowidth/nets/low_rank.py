"""MaxOut_Dec from a trained MaxOut: 2-D filters become sums of vertical times horizontal ones (Jaderberg et al., 2014).

A convolution with filters W [N, C, k, k] is replaced by K vertical filters V [K, C, k, 1], then N horizontal ones
H [N, K, 1, k] (scheme 2 of "Speeding up convolutional neural networks with low rank expansions", BMVC 2014):

    W[n, c, i, j]  ~  sum_r V[r, c, i] H[n, r, j],       a matrix [(c, i), (j, n)] of rank K

filters   the matrix nearest to W: its singular value decomposition, cut after K values (Eckart and Young). What is lost
          is the root of the sum of the squares of the others.
data      the outputs nearest to those of W on given images, layer by layer: each layer is fed what the layers before it
          make of the images *after* their decomposition, and aims at what the whole network has there, so that it makes
          up for their errors. V and H, each a linear least-squares problem, are solved in turns, from the filters'
          solution on. W itself weighs as much as a few hundred patches, for where the images say little. A layer's
          error on the images is never above that of the filters' solution with the same inputs.

Images enter through two matrices only, sum x x' and sum x y' over all patches x and outputs y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from autowidth.errors import AutoWidthError
from autowidth.nets.charnet import Maxout, maxout_dec
from autowidth.nets.parts import check_choice, check_widths

Method = Literal["filters", "data"]

_TURNS = 10  # of V and H, at most
_ENOUGH = 1e-3  # a turn that lowers the error by less than this share of it is the last
_STEPS = 6  # of conjugate gradients for V; an exact solution would have K C k unknowns at once
_PATCHES = 300  # of the images, that the trained filters weigh as much as
_TINY = 1e-9  # relative: so that what is as good as singular can be inverted
_AT_ONCE = 2**24  # numbers of patches in memory


@torch.no_grad()
def decompose(
    network: nn.Module, ranks: Sequence[int | None], method: Method = "filters", images: Tensor | None = None
) -> nn.Sequential:
    """The `maxout_dec` of a network that `maxout` built and that was trained, which is left as it is.

    Args:
        network: any widths, pieces and kernels; those of a compact network too.
        ranks: K of each of the first three convolutions; None leaves one whole.
        method: what is kept as far as K filters can, "filters" or the outputs for "data".
        images: for "data", [B, 1, 24, 24] as the network takes them; a few hundred do. At full size a hundred take
            about half a minute for each layer on one core; on a GPU, put the network there.

    Example:
        >>> from autowidth.nets import maxout
        >>> network = maxout(widths=(4, 6, 8))
        >>> small = decompose(network, (5, 12, None))
        >>> small.conv2v.weight.shape, small.conv2h.weight.shape
        (torch.Size([12, 4, 9, 1]), torch.Size([12, 12, 1, 9]))
    """
    check_choice("decompose", "method", method, ("filters", "data"))
    convs, pieces = _layers(network)
    _check_ranks(ranks, convs)
    small = maxout_dec(
        ranks,
        classes=convs[-1].out_channels // pieces[-1],
        widths=[conv.out_channels // count for conv, count in zip(convs[:-1], pieces)],
        pieces=pieces,
        kernels=[conv.kernel_size[0] for conv in convs[:-1]],
    ).to(convs[0].weight)
    found: list[Pair | None] = [None if rank is None else nearest(conv, rank) for conv, rank in zip(convs, ranks)]
    for number, pair in enumerate(found, start=1):
        _put(small, number, convs[number - 1], pair)
    small.get_submodule("conv4").load_state_dict(convs[-1].state_dict())
    if method == "data":
        _fit_to_data(network, small, found, _checked(images, convs[0]))
    elif images is not None:
        raise AutoWidthError("decompose: images are given, and method='filters' does not look at them; use 'data'.")
    return small.train(network.training)


@dataclass(frozen=True, eq=False)
class Pair:
    """K vertical filters, [K, C k], and N horizontal ones that read them, [N, K, k]; and the bias [N]."""

    vertical: Tensor
    horizontal: Tensor
    bias: Tensor

    def filters(self) -> Tensor:
        """What both together do, as a matrix [C k, k, N]: the order in which images are unfolded."""
        return torch.einsum("rd,nrj->djn", self.vertical, self.horizontal)


def nearest(conv: nn.Conv2d, rank: int) -> Pair:
    """The pair whose filters are the nearest of all to those of a convolution, in float64."""
    n, c, k, _ = conv.weight.shape
    matrix = conv.weight.detach().double().permute(1, 2, 3, 0).reshape(c * k, k * n)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    root = s[:rank].sqrt()  # half of each singular value to either side: neither overflows, and training can go on
    bias = torch.zeros(n, dtype=torch.float64) if conv.bias is None else conv.bias.detach().double()
    return Pair((u[:, :rank] * root).T, (root[:, None] * vh[:rank]).view(-1, k, n).permute(2, 0, 1), bias.to(s.device))


# ---- the images ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moments:
    """What has to be known of patches x [C k, k] and wanted outputs y [N]; both are centred, so that a bias drops out.

    `gram` [C k, k, C k, k] is the sum of x x', `cross` [C k, k, N] of x y', `energy` of y'y.
    """

    gram: Tensor
    cross: Tensor
    energy: Tensor
    mean: Tensor
    target: Tensor
    count: int

    @staticmethod
    def of(inputs: Tensor, outputs: Tensor, kernel: int) -> Moments:
        """Of all positions of all images: maps [B, C, H, W], and what is wanted there, [B, N, H - k + 1, W - k + 1]."""
        size, n = inputs.shape[1] * kernel**2, outputs.shape[1]
        total = torch.zeros(size + n, dtype=torch.float64, device=inputs.device)
        square = torch.zeros(size + n, size + n, dtype=torch.float64, device=inputs.device)
        positions = outputs.shape[2] * outputs.shape[3]
        at_once = max(1, _AT_ONCE // (size * positions))
        for x, y in zip(torch.split(inputs, at_once), torch.split(outputs, at_once)):
            both = torch.cat([unfold(x.double(), kernel), y.double().flatten(2)], 1).movedim(1, 0).flatten(1)
            total += both.sum(1)
            square += both @ both.T
        count = outputs.shape[0] * positions
        square -= torch.outer(total, total) / count
        mean, shape = total / count, (-1, kernel)
        return Moments(
            square[:size, :size].reshape(*shape, size // kernel, kernel),
            square[:size, size:].reshape(*shape, n),
            square[size:, size:].trace(),
            mean[:size].view(shape),
            mean[size:],
            count,
        )

    def leaning(self, weight: Tensor) -> Moments:
        """The same, with a penalty on the distance from trained filters [N, C, k, k], as strong as some patches."""
        d, k = self.mean.shape
        wanted = weight.double().permute(1, 2, 3, 0).reshape(d, k, -1)
        gram = self.gram.clone().reshape(d * k, d * k)
        strength = _PATCHES * float(gram.diagonal().mean()) / self.count or 1.0  # maps without any contrast: W alone
        gram.diagonal().add_(strength)
        energy = self.energy + strength * wanted.square().sum()
        return replace(self, gram=gram.view_as(self.gram), cross=self.cross + strength * wanted, energy=energy)

    def error(self, pair: Pair) -> float:
        """Sum of the squared differences of all outputs, with the bias that suits best."""
        filters = pair.filters()
        made = torch.einsum("djel,eln->djn", self.gram, filters)
        return float(self.energy + ((made - 2 * self.cross) * filters).sum())


def fit(moments: Moments, start: Pair) -> Pair:
    """The pair that comes closest to the wanted outputs, found by turns from `start`; the error never grows."""
    pair, before = start, moments.error(start)
    spread = moments.gram.permute(0, 1, 3, 2).contiguous()  # [d, j, l, e]: its last dimension meets V
    for _ in range(_TURNS):
        pair = _vertical(moments, _horizontal(moments, pair), spread)
        error = moments.error(pair)
        if error >= (1 - _ENOUGH) * before:
            break
        before = error
    pair = _horizontal(moments, pair)
    bias = moments.target - torch.einsum("djn,dj->n", pair.filters(), moments.mean)
    return Pair(pair.vertical, pair.horizontal, bias)


def _horizontal(moments: Moments, pair: Pair) -> Pair:
    """The best H for this V, exactly: least squares with K k unknowns for each filter."""
    n, k = pair.horizontal.shape[0], pair.horizontal.shape[2]
    seen = torch.einsum("rd,djel,se->rjsl", pair.vertical, moments.gram, pair.vertical)
    normal = seen.reshape(pair.vertical.shape[0] * k, -1)
    now = pair.horizontal.permute(1, 2, 0).reshape(-1, n)
    missing = torch.einsum("rd,djn->rjn", pair.vertical, moments.cross).reshape(-1, n) - normal @ now
    normal.diagonal().add_(_TINY * normal.diagonal().mean())
    better = now + torch.linalg.solve(normal, missing)
    return Pair(pair.vertical, better.view(-1, k, n).permute(2, 0, 1), pair.bias)


def _vertical(moments: Moments, pair: Pair, spread: Tensor) -> Pair:
    """A better V for this H: conjugate gradients, preconditioned as if the columns of a patch were independent."""
    h = pair.horizontal
    weight = torch.einsum("nrj,nsl->rjsl", h, h)
    inner = _inverse(torch.einsum("rjsj->rs", weight))
    outer = _inverse(torch.einsum("djej->de", moments.gram))

    def applied(v: Tensor) -> Tensor:
        return torch.einsum("rjsl,djls->rd", weight, spread @ v.T)

    left = torch.einsum("djn,nrj->rd", moments.cross, h) - applied(pair.vertical)
    found, direction, slope = torch.zeros_like(left), torch.zeros_like(left), 1.0
    for _ in range(_STEPS):
        steered = inner @ left @ outer
        previous, slope = slope, float((left * steered).sum())
        direction = steered + slope / previous * direction
        image = applied(direction)
        curvature = float((direction * image).sum())
        if slope <= 0 or curvature <= 0:  # nothing is left but rounding
            break
        found += slope / curvature * direction
        left -= slope / curvature * image
    return Pair(pair.vertical + found, h, pair.bias)


def _inverse(matrix: Tensor) -> Tensor:
    raised = matrix.clone()
    raised.diagonal().add_(_TINY * matrix.diagonal().mean())
    inverse: Tensor = torch.linalg.inv(raised)
    return inverse


def _fit_to_data(network: nn.Module, small: nn.Module, found: Sequence[Pair | None], images: Tensor) -> None:
    """Layer after layer: the whole network's maps, and those of the decomposed one with all layers before it done."""
    whole = mine = images
    for number, pair in enumerate(found, start=1):
        conv = network.get_submodule(f"conv{number}")
        assert isinstance(conv, nn.Conv2d), "checked before"
        whole = conv(whole)
        if pair is not None:
            moments = Moments.of(mine, whole, conv.kernel_size[0]).leaning(conv.weight)
            _put(small, number, conv, fit(moments, pair))
        for name in (f"conv{number}",) if pair is None else (f"conv{number}v", f"conv{number}h"):
            mine = small.get_submodule(name)(mine)
        maxout = network.get_submodule(f"maxout{number}")
        whole, mine = maxout(whole), maxout(mine)


# ---- the networks ----------------------------------------------------------------------------------------------------


def _layers(network: nn.Module) -> tuple[list[nn.Conv2d], list[int]]:
    """The four convolutions of a MaxOut, and how many filters each maxout compares."""
    children = dict(network.named_children())
    wanted = [f"{kind}{number}" for number in range(1, 5) for kind in ("conv", "maxout")]
    convs = [child for name in wanted if isinstance(child := children.get(name), nn.Conv2d)]
    pieces = [child.pieces for name in wanted if isinstance(child := children.get(name), Maxout)]
    if [*children] != [*wanted, "flatten"] or len(convs) != 4 or len(pieces) != 4:
        found = ", ".join(children) or "none"
        raise AutoWidthError(
            f"decompose: this {type(network).__name__} is not a MaxOut: its layers are {found}. Pass a network that "
            "autowidth.nets.maxout built."
        )
    return convs, pieces


def _check_ranks(ranks: Sequence[int | None], convs: Sequence[nn.Conv2d]) -> None:
    check_widths("decompose", "ranks", ranks, 3)
    for number, (rank, conv) in enumerate(zip(ranks, convs), start=1):
        n, c, k, _ = conv.weight.shape
        if rank is not None and rank > k * min(n, c):
            raise AutoWidthError(
                f"decompose: the rank of conv{number} is {rank}, and {k * min(n, c)} is exact already for {n} filters "
                f"of {k}x{k} over {c} channels. Choose less, or None to leave the layer whole."
            )


def _checked(images: Tensor | None, conv: nn.Conv2d) -> Tensor:
    if images is None:
        raise AutoWidthError("decompose: method='data' needs images=, [B, 1, 24, 24] as the network was trained on.")
    if images.dim() != 4 or tuple(images.shape[1:]) != (conv.in_channels, 24, 24) or not len(images):
        raise AutoWidthError(
            f"decompose: images have the shape {list(images.shape)}; they must be [B, {conv.in_channels}, 24, 24], "
            "with at least one."
        )
    return images.to(conv.weight)


def _put(small: nn.Module, number: int, conv: nn.Conv2d, pair: Pair | None) -> None:
    """Write a pair into the layers that take the place of this convolution; None is the convolution itself."""
    if pair is None:
        small.get_submodule(f"conv{number}").load_state_dict(conv.state_dict())
        return
    vertical, horizontal = (small.get_submodule(f"conv{number}{way}") for way in "vh")
    rank, k = pair.vertical.shape[0], conv.kernel_size[0]
    vertical.load_state_dict({"weight": pair.vertical.view(rank, -1, k, 1), "bias": torch.zeros(rank)})
    horizontal.load_state_dict({"weight": pair.horizontal.unsqueeze(2), "bias": pair.bias})
