"""The three kernels of the proximal step on CUDA, as Triton compiles them; `triton_engine.py` starts them.

    sums     entries    -> slots    the sum of squares of a stretch of entries at each position (and of divisors)
    units    slots      -> units    norms, the closed form, the guard: one program for each axis
    write    units      -> entries  shrink; momenta of what is dead to zero

A tile of the tables is (sheet, first position, first entry, last entry, slot); a sheet is (address, positions, inner,
entries, owners, kind + 4 * root + 8 * flat). `PARAMETER` is the type of the entries, `WIDE` the type that is calculated
in. Flat sheets, whose positions lie one after another on addresses that are multiples of 16 bytes, are read and written
in words of 16 bytes: the compiler does so where addresses and sizes are visibly multiples.
"""

import triton
import triton.language as tl


@triton.jit
def _divided(a, b, WIDE: tl.constexpr):
    """Rounded as everywhere else; a plain division of float32 is not."""
    if WIDE == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def _root(x, WIDE: tl.constexpr):
    if WIDE == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def _soft(x, bound):
    """Entries beyond the bound, nearer to zero by it; the others zero."""
    return x - tl.minimum(tl.maximum(x, -bound), bound)


@triton.jit
def _offsets(place, entry, positions, inner, FLAT: tl.constexpr):
    """Where an entry of a position lies: [outer, positions, inner], or [positions, inner] where it is flat."""
    if FLAT:
        return place.to(tl.int64) * (inner // 4 * 4) + entry
    else:
        outer = entry // inner
        return (outer.to(tl.int64) * positions + place) * inner + (entry - outer * inner)


@triton.jit
def _begin(address, PARAMETER: tl.constexpr, FLAT: tl.constexpr):
    """The first entry of a sheet."""
    if FLAT:
        address = address // 16 * 16
    return address.to(tl.pointer_type(PARAMETER))


@triton.jit
def _whole(number, FLAT: tl.constexpr):
    """The same number; where it is flat, one that is visibly a multiple of four."""
    if FLAT:
        number = number // 4 * 4
    return number


@triton.jit
def _sum_tile(address, owner, bounds, place, first, last, positions, inner, kind, epsilon, slots,
              PARAMETER: tl.constexpr, WIDE: tl.constexpr, SOFT: tl.constexpr, FLAT: tl.constexpr,
              HIGH: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    """One number for each of HIGH positions."""
    base, first, last = _begin(address, PARAMETER, FLAT), _whole(first, FLAT), _whole(last, FLAT)
    row = place + tl.arange(0, HIGH)
    there = row < positions
    if SOFT:
        bound = tl.load(bounds + tl.load(owner + row, mask=there, other=0), mask=there, other=0.0)[:, None]
    total = tl.zeros((HIGH, LONG), dtype=WIDE)
    for start in range(first, last, LONG):
        entry = start + tl.arange(0, LONG)
        inside = there[:, None] & (entry < last)[None, :]
        where = base + _offsets(row[:, None], entry[None, :], positions, inner, FLAT)
        x = tl.load(where, mask=inside, other=0.0).to(WIDE)
        if SOFT:
            x = _soft(x, bound)
        if kind % 8 == 0:
            total += x * x
        else:
            divisor = tl.where(kind % 8 >= 4, _root(x, WIDE), x) + epsilon
            total += tl.where(inside, divisor, 0.0)
    tl.store(slots + tl.arange(0, HIGH), tl.sum(total, axis=1), mask=there)


@triton.jit
def sums(sheets, epsilons, tiles, owners, bounds, slots, PARAMETER: tl.constexpr, WIDE: tl.constexpr,
         SOFT: tl.constexpr, TALL: tl.constexpr, LONG: tl.constexpr,
         BROAD: tl.constexpr, SHORT: tl.constexpr, TOGETHER: tl.constexpr):  # fmt: skip
    """Entries to slots: one program for each tile."""
    tile = tiles + 5 * tl.program_id(0)
    sheet, place = tl.load(tile), tl.load(tile + 1)
    first, last, slot = tl.load(tile + 2), tl.load(tile + 3), tl.load(tile + 4)
    positions, inner = tl.load(sheets + 6 * sheet + 1), tl.load(sheets + 6 * sheet + 2).to(tl.int32)
    owner, kind = owners + tl.load(sheets + 6 * sheet + 4), tl.load(sheets + 6 * sheet + 5)
    if SOFT:
        last = tl.where(kind % 8 == 0, last, first)  # divisors have been summed before
    address, epsilon = tl.load(sheets + 6 * sheet), tl.load(epsilons + sheet)
    if kind >= 8:
        _sum_tile(address, owner, bounds, place, first, last, positions, inner, kind, epsilon, slots + slot,
                  PARAMETER, WIDE, SOFT, True, TALL, LONG)  # fmt: skip
    elif inner >= TOGETHER:
        _sum_tile(address, owner, bounds, place, first, last, positions, inner, kind, epsilon, slots + slot,
                  PARAMETER, WIDE, SOFT, False, TALL, LONG)  # fmt: skip
    else:
        _sum_tile(address, owner, bounds, place, first, last, positions, inner, kind, epsilon, slots + slot,
                  PARAMETER, WIDE, SOFT, False, BROAD, SHORT)  # fmt: skip


@triton.jit
def _gather(slots, begin, index, unit, there, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over the slots of each unit; eight loads are on their way at a time.

    A sum over an axis inside of a loop will not do: Triton 3.6 mixes rows there where a thread holds several.
    """
    at, end = tl.load(begin + unit, mask=there, other=0), tl.load(begin + unit + 1, mask=there, other=0)
    total = tl.zeros((BLOCK,), dtype=WIDE)
    for k in range(0, tl.max(end - at, axis=0), 8):
        for j in tl.static_range(8):
            more = at + k + j < end
            place = tl.load(index + at + k + j, mask=more, other=0)
            total += tl.load(slots + place, mask=more, other=0.0)
    return total


@triton.jit
def _shrink(norm, amount, knot, WIDE: tl.constexpr):
    """The closed form of `prox.shrink_factor`."""
    shrunk = tl.maximum(1.0 - _divided(amount, tl.where(norm > 0, norm, 1.0), WIDE), 0.0)
    bent = knot < float("inf")
    room = tl.where(bent, tl.where(amount < knot, knot - amount, 1.0), 1.0)
    stretch = _divided(tl.where(bent, knot + tl.zeros_like(norm), 1.0), room, WIDE)
    soft = tl.where(bent, shrunk * stretch, shrunk)
    hard = tl.where(norm * norm > amount * knot, 1.0, 0.0)
    factor = tl.where(amount < knot, tl.where(norm > knot, 1.0, soft), hard)
    factor = tl.where(norm > 0, factor, tl.where(norm != norm, 1.0, 0.0))
    return tl.where(amount > 0, factor, 1.0)


@triton.jit
def units(slots, begin, index, plain, total, amounts, firsts, guarded, raws, scales, bounds, factors, states, counts,
          units, FIRST: tl.constexpr, LAST: tl.constexpr, ADAPTIVE: tl.constexpr, RELATIVE: tl.constexpr,
          WIDE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Slots to units: one program for each axis."""
    axis = tl.program_id(0)
    start, stop = tl.load(firsts + axis), tl.load(firsts + axis + 1)
    l1, l2, knot = tl.load(amounts + 3 * axis), tl.load(amounts + 3 * axis + 1), tl.load(amounts + 3 * axis + 2)
    # The norms before anything is thresholded, the two largest of them, and the mean divisor of units that live.
    top = tl.full((), -1.0, dtype=WIDE)
    second = tl.full((), -1.0, dtype=WIDE)
    usual = tl.full((), 0.0, dtype=WIDE)
    alive = tl.full((), 0.0, dtype=WIDE)
    for at in range(start, stop, BLOCK):
        unit = at + tl.arange(0, BLOCK)
        there = unit < stop
        if FIRST:
            raw = _root(_gather(slots, begin, index, unit, there, WIDE, BLOCK), WIDE)
            tl.store(raws + unit, raw, mask=there)
        else:
            raw = tl.load(raws + unit, mask=there, other=0.0)
        size = tl.where(there, tl.where(raw == raw, raw, float("inf")), -1.0)
        largest = tl.max(size, axis=0)
        again = tl.sum((size == largest).to(tl.int32), axis=0) > 1
        next_one = tl.where(again, largest, tl.max(tl.where(size == largest, -1.0, size), axis=0))
        second = tl.maximum(tl.maximum(tl.minimum(top, largest), second), next_one)
        top = tl.maximum(top, largest)
        if FIRST and ADAPTIVE:
            sums = _gather(slots, begin + units + 1, index, unit, there, WIDE, BLOCK)
            entries = tl.load(total + unit, mask=there, other=1.0)
            mean = _divided(sums + tl.load(plain + unit, mask=there, other=0.0), entries, WIDE)
            tl.store(scales + unit, mean, mask=there)
            lives = there & (raw > 0)
            usual += tl.sum(tl.where(lives, mean, 0.0), axis=0)
            alive += tl.sum(lives.to(WIDE), axis=0)
    usual = _divided(usual, tl.maximum(alive, 1.0), WIDE)
    tl.debug_barrier()  # what is stored above is read below, by other threads perhaps
    left, spared, broken = 0, 0, 0
    for at in range(start, stop, BLOCK):
        unit = at + tl.arange(0, BLOCK)
        there = unit < stop
        raw = tl.load(raws + unit, mask=there, other=0.0)
        if ADAPTIVE:
            scale = tl.load(scales + unit, mask=there, other=1.0)
            if FIRST:
                ratio = _divided(tl.full((BLOCK,), 1.0, dtype=WIDE), scale, WIDE)
                if RELATIVE:
                    ratio = tl.minimum(_divided(usual + tl.zeros((BLOCK,), dtype=WIDE), scale, WIDE), LARGEST)
                    ratio = tl.where((ratio > 0) & (ratio == ratio), ratio, 1.0)
                scale = ratio
                tl.store(scales + unit, scale, mask=there)
        else:
            scale = tl.full((BLOCK,), 1.0, dtype=WIDE)
        if not LAST:
            tl.store(bounds + unit, l1 * scale, mask=there)
        else:
            if FIRST:
                norm = raw
            else:
                norm = _root(_gather(slots, begin, index, unit, there, WIDE, BLOCK), WIDE)
            factor = _shrink(norm, l2 * scale, knot, WIDE)
            dead = norm * factor == 0
            spare = there & dead & (raw > 0) & (raw >= second) & (tl.load(guarded + axis) != 0)
            dead = there & dead & (spare == 0)
            # What is zero already needs no writing: a factor of one.
            tl.store(factors + unit, tl.where(spare | (raw == 0), 1.0, factor), mask=there)
            tl.store(states + unit, dead.to(tl.int32) + 2 * spare.to(tl.int32), mask=there)
            left += tl.sum((there & (dead == 0)).to(tl.int32), axis=0)
            spared += tl.sum(spare.to(tl.int32), axis=0)
            broken += tl.sum((there & (norm != norm)).to(tl.int32), axis=0)
    if LAST:
        tl.store(counts + 3 * axis, left.to(tl.int64))
        tl.store(counts + 3 * axis + 1, spared.to(tl.int64))
        tl.store(counts + 3 * axis + 2, broken.to(tl.int64))


@triton.jit
def _write_tile(address, owner, factors, bounds, states, place, first, last, positions, inner, kind,
                PARAMETER: tl.constexpr, WIDE: tl.constexpr, THRESHOLDS: tl.constexpr, FLAT: tl.constexpr,
                HIGH: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    base, first, last = _begin(address, PARAMETER, FLAT), _whole(first, FLAT), _whole(last, FLAT)
    row = place + tl.arange(0, HIGH)
    there = row < positions
    unit = tl.load(owner + row, mask=there, other=0)
    state = tl.load(states + unit, mask=there, other=0)
    factor = tl.load(factors + unit, mask=there, other=1.0)
    shrunk = factor != 1
    if THRESHOLDS:
        bound = tl.load(bounds + unit, mask=there, other=0.0)
        shrunk = (state != 2) & (shrunk | (bound > 0))
    active = there & tl.where(kind % 8 == 0, shrunk, state == 1)
    if tl.max(active.to(tl.int32), axis=0) == 0:
        return
    for start in range(first, last, LONG):
        entry = start + tl.arange(0, LONG)
        inside = active[:, None] & (entry < last)[None, :]
        where = base + _offsets(row[:, None], entry[None, :], positions, inner, FLAT)
        if kind % 8 == 0:
            x = tl.load(where, mask=inside, other=0.0).to(WIDE)
            if THRESHOLDS:
                x = _soft(x, bound[:, None])
            tl.store(where, (x * factor[:, None]).to(PARAMETER), mask=inside)
        else:
            tl.store(where, tl.zeros((HIGH, LONG), dtype=PARAMETER), mask=inside)


@triton.jit
def write(sheets, tiles, owners, factors, bounds, states, PARAMETER: tl.constexpr, WIDE: tl.constexpr,
          THRESHOLDS: tl.constexpr, TALL: tl.constexpr, LONG: tl.constexpr,
          BROAD: tl.constexpr, SHORT: tl.constexpr, TOGETHER: tl.constexpr):  # fmt: skip
    """Units to entries: one program for each tile."""
    tile = tiles + 5 * tl.program_id(0)
    sheet, place = tl.load(tile), tl.load(tile + 1)
    first, last = tl.load(tile + 2), tl.load(tile + 3)
    positions, inner = tl.load(sheets + 6 * sheet + 1), tl.load(sheets + 6 * sheet + 2).to(tl.int32)
    owner, kind = owners + tl.load(sheets + 6 * sheet + 4), tl.load(sheets + 6 * sheet + 5)
    address = tl.load(sheets + 6 * sheet)
    if kind >= 8:
        _write_tile(address, owner, factors, bounds, states, place, first, last, positions, inner, kind,
                    PARAMETER, WIDE, THRESHOLDS, True, TALL, LONG)  # fmt: skip
    elif inner >= TOGETHER:
        _write_tile(address, owner, factors, bounds, states, place, first, last, positions, inner, kind,
                    PARAMETER, WIDE, THRESHOLDS, False, TALL, LONG)  # fmt: skip
    else:
        _write_tile(address, owner, factors, bounds, states, place, first, last, positions, inner, kind,
                    PARAMETER, WIDE, THRESHOLDS, False, BROAD, SHORT)  # fmt: skip
