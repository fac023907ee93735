"""From measured rows to verdicts: ratios of alternating runs, what is required of them, and the tables that show it."""

import json
import statistics
from dataclasses import asdict, dataclass

KIB, MIB = 1 << 10, 1 << 20

# Up to which size an allreduce may take at most which part of Open MPI's time, and must reach which part of the floor's
# rate, for two ranks with a core each and for four ranks on two cores.
ALLREDUCE = {
    2: [(2 * KIB, 1.0, None), (8 * KIB, 0.6, None), (32 * KIB, 0.35, None), (8 * MIB, 0.35, 0.70), (1 << 62, 0.3, 0.85)],
    4: [(512, 0.85, None), (8 * KIB, 0.5, None), (8 * MIB, 0.35, None), (1 << 62, 0.3, 0.75)],
}


# Where no part of the floor's rate is required: what is near enough to say that it is the floor that bounds.
NEAR_FLOOR = 0.70

# How much longer a call on ordinary memory may take than one on registered buffers, and at which size.
UNREGISTERED_AT, UNREGISTERED_MAX = 64 * MIB, 2.5


def required(operation, size, ranks, processors):
    """The largest ratio to Open MPI's time and the least part of the floor that are allowed; None where nothing is required, as
    of other numbers of ranks than the two."""
    if not (ranks == 2 <= processors or (ranks, processors) == (4, 2)):
        return None, None
    if operation == "allreduce":
        return next((ratio, floor) for up_to, ratio, floor in ALLREDUCE[ranks] if size <= up_to)
    return (1.1 if ranks == 4 and size <= 64 else 1.0), None


# Two processors are as far apart as at another time when a cache line's round trip takes at most so many times as long:
# hardware threads of one core, cores with a common cache and cores without one differ by more.
ALIKE = 1.5


@dataclass(frozen=True)
class Sample:
    """One program's median time in one round."""

    turn: int
    time_us: float
    apart_ns: object  # how far the processors were apart; None when it was not measured

    @staticmethod
    def of(turn, time_us, trips):
        """None when the processors moved meanwhile: such a time is of no place."""
        if trips and max(trips) > ALIKE * min(trips):
            return None
        return Sample(turn, time_us, statistics.mean(trips) if trips else None)

    def is_like(self, other):
        if self.apart_ns is None or other.apart_ns is None:
            return True
        return max(self.apart_ns, other.apart_ns) <= ALIKE * min(self.apart_ns, other.apart_ns)


def ratios(samples, others):
    """Of each sample's time to that of the other program in the nearest round in which processors were as far apart."""
    found = []
    for sample in samples:
        like = [other for other in others if sample.is_like(other) and other.time_us > 0]
        if like:
            nearest = min(like, key=lambda other: abs(other.turn - sample.turn))
            found.append(sample.time_us / nearest.time_us)
    return found


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
    apart_ns: object  # how far the processors were apart, in the median
    peers: dict  # program -> its best setting, time, ratio of ours to it, how many, ratio to its first setting
    floor_us: float
    of_floor: Spread
    unregistered: Spread  # ordinary memory's time to registered buffers'
    required_ratio: object  # None where nothing is required
    required_floor: object
    floor_ratio: object  # the bare kernel's time to Open MPI's; None where there is no kernel
    reached: object  # True, False, or None where nothing could be compared

    def is_out_of_reach(self):
        """Whether the bare kernel alone takes longer than is allowed, of an allreduce that comes as close to it as one must.
        For other operations no more than Open MPI's time is wanted, and the kernel that takes longer is no bound."""
        if self.reached is not False or self.operation != "allreduce" or None in (self.floor_ratio, self.of_floor):
            return False
        # Who is faster than the kernel, as short calls can be, which need no barrier, is not bound by it.
        near = (self.required_floor or NEAR_FLOOR) <= self.of_floor.median <= 1
        # Nor does the kernel excuse a call slower than Open MPI's, unless it is slower itself.
        slower = self.peers["openmpi"]["ratio"].median > 1 >= self.floor_ratio
        return near and self.floor_ratio > self.required_ratio and not slower

    def as_json(self):
        return json.dumps(asdict(self))


def key(operation, row):
    return operation, row["ranks"], row["in_place"], row["bytes"]


def cells(records, processors):
    """Records are (round, program, setting, row), measured on so many processors; one cell for everything that ringway was
    measured at."""
    samples, floors, paths = {}, {}, {}
    for turn, program, setting, row in records:
        where, trips = key(row["operation"], row), row.get("round_trip_ns") or []
        sample = Sample.of(turn, row["time_us"]["p50"], trips[:2])
        samples.setdefault((where, program), {}).setdefault(setting, []).extend([sample] if sample else [])
        if program == "ringway" and setting == "registered":
            paths[where] = row["path"]
            floor = Sample.of(turn, row["floor_us"], trips[1:]) if row.get("floor_us") is not None else None
            floors.setdefault(where, []).extend([floor] if floor else [])
    found = []
    for where, path in sorted(paths.items()):
        operation, ranks, in_place, size = where
        own = samples[where, "ringway"]["registered"]
        peers = {program: against(own, samples[where, program])
                 for program in ("openmpi", "mpich", "gloo") if (where, program) in samples}
        shares = Spread.of([1 / ratio for ratio in ratios(own, floors[where])])
        ratio, share = required(operation, size, ranks, processors)
        unregistered = Spread.of([1 / ratio for ratio in ratios(own, samples[where, "ringway"].get("unregistered", []))])
        found.append(Cell(operation, ranks, in_place, size, path, median([sample.time_us for sample in own]),
                          median([sample.apart_ns for sample in own if sample.apart_ns is not None]), peers,
                          median([floor.time_us for floor in floors[where]]), shares, unregistered, ratio, share,
                          bare_ratio(floors[where], peers.get("openmpi"), samples.get((where, "openmpi"))),
                          verdict(peers.get("openmpi"), shares, unregistered if size == UNREGISTERED_AT else None,
                                  ratio, share)))
    return found


def median(values):
    return statistics.median(values) if values else None


def against(own, settings):
    """Ours against the setting that is best beside it, and against the first, the one that the peer has by itself."""
    found = {name: ratios(own, samples) for name, samples in settings.items()}
    spreads = {name: Spread.of(values) for name, values in found.items()}
    compared = [name for name in spreads if spreads[name]]
    best = max(compared, key=lambda name: spreads[name].median, default=next(iter(spreads)))
    # A setting that could not be compared might have been the best one.
    return {"setting": best, "time_us": median([sample.time_us for sample in settings[best]]), "ratio": spreads[best],
            "pairs": len(found[best]), "complete": len(compared) == len(settings),
            "default_ratio": spreads[next(iter(spreads))]}


def bare_ratio(floors, openmpi, settings):
    """The bare kernel's time to that of Open MPI's setting that is best beside ours."""
    return median(ratios(floors, settings[openmpi["setting"]])) if openmpi else None


def verdict(openmpi, shares, unregistered, ratio, share):
    """Whether what is required was reached; None when nothing is, or not everything could be compared."""
    if ratio is None or openmpi is None or not openmpi["complete"]:
        return None
    slow = openmpi["ratio"].median > ratio
    far = share is not None and shares is not None and shares.median < share
    dear = unregistered is not None and unregistered.median > UNREGISTERED_MAX
    if slow or far or dear:
        return False
    return None if share is not None and shares is None else True


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


HEAD = ["operation", "ranks", "place", "size", "path", "apart ns", "ours us", "Open MPI us", "its setting", "ours/best", "pairs", "allowed",
        "ours/default", "MPICH us", "ours/MPICH", "Gloo us", "ours/Gloo", "floor us", "of floor", "required",
        "unreg/reg", "verdict"]


def columns(cell):
    openmpi, mpich, gloo = (cell.peers.get(name) for name in ("openmpi", "mpich", "gloo"))
    ours_to = lambda peer: ratio_text(peer["ratio"]) if peer else "-"
    time = lambda peer: number(peer["time_us"]) if peer else "-"
    share = "-" if cell.of_floor is None else f"{100 * cell.of_floor.median:.0f}%"
    return [cell.operation, str(cell.ranks), "in" if cell.in_place else "out", size_text(cell.bytes), cell.path,
            "-" if cell.apart_ns is None else f"{cell.apart_ns:.0f}", number(cell.ours_us), time(openmpi), openmpi["setting"] if openmpi else "-", ours_to(openmpi),
            str(openmpi["pairs"]) if openmpi else "-", "-" if cell.required_ratio is None else f"{cell.required_ratio:.2f}", ratio_text(openmpi["default_ratio"]) if openmpi else "-", time(mpich),
            ours_to(mpich), time(gloo), ours_to(gloo), number(cell.floor_us), share,
                "-" if cell.required_floor is None else f"{100 * cell.required_floor:.0f}%",
            "-" if cell.unregistered is None else f"{cell.unregistered.median:.2f}",
            "FLOOR" if cell.is_out_of_reach() else {True: "reached", False: "MISSED", None: "-"}[cell.reached]]


def columned(head, rows):
    """Columns for a terminal."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def ruled(head, rows, names=3):
    """The same as a table for a document; the first columns are names."""
    rule = ["---"] * names + ["---:"] * (len(head) - names - 1) + ["---"]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *rows])
