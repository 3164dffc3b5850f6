"""Many names in little room, and lines that break between the parts of a name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells

# What a module's own tensors are called: the module says it all.
_OWN = ("weight", "bias", "running_mean", "running_var")

# A name cut at its numbers: text, number, text, ..., and in place of each all that stands there.
_Parts = tuple[tuple[str, ...], ...]


def owners(tensors: Iterable[str]) -> list[str]:
    """The modules of these tensors, each once; the tensor itself where its name says more than `weight`.

    Example:
        >>> owners(["conv1.weight", "conv1.bias", "attn.in_proj_weight"])
        ['conv1', 'attn.in_proj_weight']
    """
    split = [(name, *name.rpartition(".")[::2]) for name in tensors]
    return list(dict.fromkeys(module if module and last in _OWN else name for name, module, last in split))


def braced(names: Sequence[str]) -> list[str]:
    """The same names, those that differ in one number or in their last part written as one, as a shell would.

    Example:
        >>> braced(["conv1", "layer1.0.conv2", "layer1.0.bn2", "layer1.1.conv2", "layer1.1.bn2"])
        ['conv1', 'layer1.{0,1}.{conv2,bn2}']
    """
    found: list[_Parts] = [tuple((part,) for part in re.split(r"(\d+)", name)) for name in dict.fromkeys(names)]
    for slot in range(1, max(map(len, found), default=0), 2):
        found = _merged(found, slot)
    ends: dict[str, list[str]] = {}
    for parts in found:
        prefix, dot, last = "".join(map(_choice, parts)).rpartition(".")
        ends.setdefault(prefix + dot or last, []).append(last)
    return [prefix + _braces(last) if prefix.endswith(".") else prefix for prefix, last in ends.items()]


def folded(text: str, width: int) -> list[str]:
    """Lines of at most that width, broken between words, or between the parts of a word that is too long.

    Example:
        >>> folded("read by encoder.layers.{0-11}.mlp", 20)
        ['read by', 'encoder.layers.', '{0-11}.mlp']
    """
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for piece in re.findall(r"[^.,/]+[.,/]*|[.,/]+", word) if cell_len(word) > width else [word]:
            for part in chop_cells(piece, width):
                if cell_len(lines[-1] + part) <= width:
                    lines[-1] += part
                else:
                    lines.append(part)
    return lines


def _merged(found: Sequence[_Parts], slot: int) -> list[_Parts]:
    """Names that differ in this place alone become one; exact, as the other places must be equal as sets."""
    groups: dict[tuple[_Parts, _Parts], dict[str, None]] = {}
    for parts in found:
        numbers = parts[slot] if slot < len(parts) else ()
        groups.setdefault((parts[:slot], parts[slot + 1 :]), {}).update(dict.fromkeys(numbers))
    return [(*before, tuple(sorted(numbers, key=int)), *after) if numbers else before + after
            for (before, after), numbers in groups.items()]  # fmt: skip


def _choice(parts: tuple[str, ...]) -> str:
    """Numbers as a list with ranges: 0-3,7."""
    runs: list[list[str]] = []
    for part in parts:
        if runs and part.isdigit() and part == str(int(runs[-1][-1]) + 1):
            runs[-1].append(part)
        else:
            runs.append([part])
    return _braces([f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(r) for r in runs], always=len(parts) > 1)


def _braces(choices: Sequence[str], always: bool = False) -> str:
    return "{" + ",".join(choices) + "}" if always or len(choices) > 1 else choices[0]
