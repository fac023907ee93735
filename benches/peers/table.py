"""From measured rows to verdicts: ratios of alternating runs, what is required of them, and the tables that show it."""

import json
import statistics
from dataclasses import asdict, dataclass

KIB, MIB = 1 << 10, 1 << 20

# Up to which size an allreduce may take at most which part of Open MPI's time, and must reach which part of the floor's
# rate, for ranks with a core each and for twice as many ranks as cores.
ALLREDUCE = {
    False: [(2 * KIB, 1.0, None), (8 * KIB, 0.6, None), (32 * KIB, 0.35, None), (8 * MIB, 0.35, 0.70),
            (1 << 62, 0.3, 0.85)],
    True: [(64, 0.85, None), (512, 0.85, None), (8 * KIB, 0.5, None), (8 * MIB, 0.35, None), (1 << 62, 0.3, 0.75)],
}


# How much longer a call on ordinary memory may take than one on registered buffers, and at which size.
UNREGISTERED_AT, UNREGISTERED_MAX = 64 * MIB, 2.5


def required(operation, size, oversubscribed):
    """The largest ratio to Open MPI's time and the least part of the floor that are allowed."""
    if operation == "allreduce":
        return next((ratio, floor) for up_to, ratio, floor in ALLREDUCE[oversubscribed] if size <= up_to)
    return (1.1 if oversubscribed and size <= 64 else 1.0), None


@dataclass
class Spread:
    """A median and the range of the middle half of the values."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values):
        values = sorted(values)
        if not values:
            return None
        n = len(values) - 1
        return Spread(statistics.median(values), values[round(n * 0.25)], values[round(n * 0.75)])


@dataclass
class Cell:
    """One operation, number of ranks, form and size."""

    operation: str
    ranks: int
    in_place: bool
    bytes: int
    path: str
    ours_us: float
    peers: dict  # program -> its best setting, time, ratio of ours to it, ratio to its first setting
    floor_us: float
    of_floor: Spread
    unregistered: Spread  # ordinary memory's time to registered buffers'
    required_ratio: float
    required_floor: float
    reached: object  # True, False, or None where nothing could be compared

    def as_json(self):
        return json.dumps(asdict(self))


def key(operation, row):
    return operation, row["ranks"], row["in_place"], row["bytes"]


def cells(records, oversubscribed):
    """Records are (round, program, setting, row); one cell for everything that ringway was measured at."""
    times, ours = {}, {}
    for turn, program, setting, row in records:
        where = key(row["operation"], row)
        times.setdefault((where, program), {}).setdefault(setting, {})[turn] = row["time_us"]["p50"]
        if program == "ringway" and setting == "registered":
            ours.setdefault(where, {})[turn] = row
    found = []
    for where, rows in sorted(ours.items()):
        operation, ranks, in_place, size = where
        own = times[where, "ringway"]["registered"]
        peers = {}
        for program in ("openmpi", "mpich", "gloo"):
            settings = times.get((where, program), {})
            if settings:
                peers[program] = against(own, settings)
        floors = [row["floor_us"] for row in rows.values() if row.get("floor_us") is not None]
        shares = Spread.of([row["of_floor"] for row in rows.values() if row.get("of_floor") is not None])
        ratio, share = required(operation, size, oversubscribed(ranks))
        slices = times[where, "ringway"].get("unregistered", {})
        unregistered = Spread.of([time / own[turn] for turn, time in slices.items() if turn in own])
        first = next(iter(rows.values()))
        found.append(Cell(operation, ranks, in_place, size, first["path"], statistics.median(own.values()), peers,
                          statistics.median(floors) if floors else None, shares, unregistered, ratio, share,
                          verdict(peers.get("openmpi"), shares, unregistered if size == UNREGISTERED_AT else None,
                                  ratio, share)))
    return found


def against(own, settings):
    """Ours against the peer's best setting, and against its first, the one that it has by itself."""
    best = min(settings, key=lambda name: statistics.median(settings[name].values()))
    ratio = {name: Spread.of([own[turn] / time for turn, time in turns.items() if turn in own and time > 0])
             for name, turns in settings.items()}
    return {"setting": best, "time_us": statistics.median(settings[best].values()), "ratio": ratio[best],
            "default_ratio": ratio[next(iter(settings))]}


def verdict(openmpi, shares, unregistered, ratio, share):
    """Whether what is required was reached; None when nothing was measured to compare with."""
    if openmpi is None or openmpi["ratio"] is None:
        return None
    enough = share is None or (shares is not None and shares.median >= share)
    return openmpi["ratio"].median <= ratio and enough and (
        unregistered is None or unregistered.median <= UNREGISTERED_MAX)


def number(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def size_text(size):
    for unit, name in ((MIB, "M"), (KIB, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def ratio_text(spread):
    return "-" if spread is None else f"{spread.median:.2f} [{spread.low:.2f}-{spread.high:.2f}]"


HEAD = ["operation", "ranks", "place", "size", "path", "ours us", "Open MPI us", "its setting", "ours/best", "allowed",
        "ours/default", "MPICH us", "ours/MPICH", "Gloo us", "ours/Gloo", "floor us", "of floor", "required",
        "unreg/reg", "verdict"]


def columns(cell):
    openmpi, mpich, gloo = (cell.peers.get(name) for name in ("openmpi", "mpich", "gloo"))
    ours_to = lambda peer: ratio_text(peer["ratio"]) if peer else "-"
    time = lambda peer: number(peer["time_us"]) if peer else "-"
    share = "-" if cell.of_floor is None else f"{100 * cell.of_floor.median:.0f}%"
    return [cell.operation, str(cell.ranks), "in" if cell.in_place else "out", size_text(cell.bytes), cell.path,
            number(cell.ours_us), time(openmpi), openmpi["setting"] if openmpi else "-", ours_to(openmpi),
            f"{cell.required_ratio:.2f}", ratio_text(openmpi["default_ratio"]) if openmpi else "-", time(mpich),
            ours_to(mpich), time(gloo), ours_to(gloo), number(cell.floor_us), share,
                "-" if cell.required_floor is None else f"{100 * cell.required_floor:.0f}%",
            "-" if cell.unregistered is None else f"{cell.unregistered.median:.2f}",
            {True: "reached", False: "MISSED", None: "-"}[cell.reached]]


def aligned(found):
    """Columns for a terminal."""
    lines = [HEAD] + [columns(cell) for cell in found]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def markdown(found):
    """The same as a table for a document."""
    rule = ["---"] * 3 + ["---:"] * (len(HEAD) - 4) + ["---"]
    return "\n".join("| " + " | ".join(line) + " |" for line in [HEAD, rule] + [columns(cell) for cell in found])


def summary(found):
    """One line: how many cells reach what is required."""
    judged = [cell for cell in found if cell.reached is not None]
    reached = sum(cell.reached for cell in judged)
    return f"{reached} of {len(judged)} cells reach what is required of them"
