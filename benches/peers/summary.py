"""What a run says as a whole: how much of what is required was reached, by ranges of sizes, what was missed, and how time
goes with the number of ranks."""

import table
from table import KIB, MIB

# The ranges in which the same is required, each up to a size. A size between two of them belongs to the one whose limits
# hold for it.
RANGES = [(64, "4 - 64 B"), (2 * KIB, "128 B - 1 KiB"), (8 * KIB, "4 - 8 KiB"), (8 * MIB, "16 KiB - 4 MiB"),
          (1 << 62, "16 - 64 MiB")]
# Those of the floor, each from a size to the next one's.
FLOOR_RANGES = [(64 * KIB, "of floor, 64 KiB - 4 MiB"), (8 * MIB + 1, "of floor, 16 - 64 MiB")]


def verdict(found):
    """One line: how many cells reach what is required."""
    asked = [cell for cell in found if cell.required_ratio is not None]
    judged = [cell for cell in asked if cell.reached is not None]
    reached = sum(cell.reached for cell in judged)
    beyond = sum(cell.is_out_of_reach() for cell in found)
    text = f"{reached} of {len(asked)} cells reach what is required of them, {len(judged) - reached} miss it"
    if beyond:
        text += f", {beyond} of them where the bare kernel itself takes longer than is allowed (FLOOR)"
    if len(asked) > len(judged):
        text += f"; {len(asked) - len(judged)} could not be judged: more rounds may find the processors alike"
    if len(found) > len(asked):
        text += f"; of {len(found) - len(asked)} others nothing is required"
    return text


def span(values, text):
    """The smallest and the largest."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} - {high}"


def ratio(cell):
    openmpi = cell.peers.get("openmpi")
    return openmpi["ratio"].median if openmpi and openmpi["ratio"] else None


RANGES_HEAD = ["operation", "ranks", *(name for _, name in RANGES), *(name for _, name in FLOOR_RANGES), "unreg/reg, 64 MiB",
               "reached"]


def ranges(found):
    """A line for each operation and number of ranks: ours/best from the smallest to the largest median over sizes and forms, and
    the part of the floor's rate."""
    for operation, ranks in dict.fromkeys((cell.operation, cell.ranks) for cell in found):
        own = [cell for cell in found if (cell.operation, cell.ranks) == (operation, ranks)]
        line, least = [operation, str(ranks)], 0
        for up_to, _ in RANGES:
            line.append(span([ratio(cell) for cell in own if least < cell.bytes <= up_to], lambda value: f"{value:.2f}"))
            least = up_to
        ends = [least for least, _ in FLOOR_RANGES[1:]] + [1 << 62]
        for (least, _), end in zip(FLOOR_RANGES, ends):
            shares = [cell.of_floor.median for cell in own if cell.of_floor and least <= cell.bytes < end]
            line.append(span(shares, lambda value: f"{100 * value:.0f} %"))
        ordinary = [cell.unregistered.median for cell in own if cell.unregistered and cell.bytes == table.UNREGISTERED_AT]
        line.append(span(ordinary, lambda value: f"{value:.2f}"))
        asked = sum(cell.required_ratio is not None for cell in own)
        line.append(f"{sum(cell.reached is True for cell in own)} of {asked}" if asked else "-")
        yield line


MISSED_HEAD = ["operation", "ranks", "place", "size", "apart ns", "ours us", "Open MPI us", "its setting", "ours/best", "allowed",
               "floor us", "of floor", "required", "unreg/reg", "verdict"]


def missed(found):
    """The lines of the table that do not reach what is required."""
    for cell in found:
        if cell.reached is False:
            line = dict(zip(table.HEAD, table.columns(cell)))
            yield [line[name] for name in MISSED_HEAD]


SCALING_HEAD = ["operation", "place", "size", "ranks", "ours us", "of floor", "algbw GB/s", "busbw GB/s", "ours/best"]
# Of these bus bandwidth is (n - 1) / n of what all ranks have together, as nccl-tests define it.
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")


def bus_factor(operation, ranks):
    if operation == "allreduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in DIVIDED else 1


def scaling(found):
    """How each size goes with the number of ranks."""
    for cell in sorted(found, key=lambda cell: (cell.operation, cell.in_place, cell.bytes, cell.ranks)):
        line = dict(zip(table.HEAD, table.columns(cell)))
        rate = cell.bytes / cell.ours_us / 1e3 if cell.ours_us else None
        bus = rate * bus_factor(cell.operation, cell.ranks) if rate else None
        line |= {"algbw GB/s": table.number(rate), "busbw GB/s": table.number(bus)}
        yield [line[name] for name in SCALING_HEAD]


def sharing(found, processors):
    """A note on ranks that have no processor to themselves; empty where all have."""
    shared = sorted({cell.ranks for cell in found if cell.ranks > processors})
    return f"{', '.join(map(str, shared))} ranks share {processors} CPUs" if shared else ""
