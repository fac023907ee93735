"""What comparisons have in common: what is measured, by turns, and how it is told."""

import argparse
import json
import os
import statistics
import sys
import time

import programs
import table

OPERATIONS = ["allreduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"]
# Of these a size is the total over all ranks.
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
# Sizes that one start of a program measures together: small ones quickly, large ones without keeping memory busy.
GROUPS = [4 << 10, 256 << 10, 16 << 20, 64 << 20, 1 << 62]


def size(text):
    units = {"K": 1 << 10, "M": 1 << 20}
    unit = units.get(text[-1:].upper(), 1)
    digits = text[:-1] if text[-1:].upper() in units else text
    if not digits.isdigit():
        raise argparse.ArgumentTypeError(f"`{text}` is not a size such as 4, 64K or 16M")
    return int(digits) * unit


def note(text):
    print(text, file=sys.stderr, flush=True)


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def works(options, ranks_list, form_of):
    """What is measured in one round, in order; `form_of` an operation is out, in or both."""
    sizes = sorted({size(text) for text in options.sizes.split(",")})
    operations = OPERATIONS if options.operations == "all" else options.operations.split(",")
    unknown = set(operations) - set(OPERATIONS)
    if unknown:
        sys.exit(f"--operations: there is no {', '.join(sorted(unknown))}; choose from {', '.join(OPERATIONS)}")
    for operation in operations:
        for ranks in ranks_list:
            least = 0
            for up_to in GROUPS:
                # Where the size is the total, each rank has one element at least.
                smallest = 4 * ranks if operation in DIVIDED else 4
                group = tuple(sorted({max(s, smallest) for s in sizes if least <= s < up_to}))
                least = up_to
                if group:
                    yield programs.Work(operation, ranks, group, form_of(operation), options.seconds)


def measure(options, plan, compared, records):
    """All rounds; adds records of (round, program, setting, row)."""
    begun, done = time.monotonic(), 0
    for work in plan:
        for turn in range(options.rounds):
            for program in compared:
                if turn >= program.rounds_max:
                    continue
                settings = program.settings(work)
                if options.default_settings and program.name != "ringway":
                    settings = settings[:1]
                for setting in settings:
                    spent = time.monotonic() - begun
                    progress(f"{done} of {len(plan) * options.rounds} in {spent:.0f} s: {work.operation} {work.ranks} "
                             f"ranks, {table.size_text(work.sizes[0])}..., {program.name} {setting}")
                    for row in program.measure(work, setting):
                        records.append([turn, program.name, setting, row])
                    if options.save:
                        options.save.write_text(json.dumps(records))
            done += 1
    progress("")


def describe(records):
    """Where and how this was measured."""
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="ascii")
                  if line.startswith("model name")), "unknown processor")
    libraries = sorted({row["library"] for _, _, _, row in records if "library" in row})
    apart = sorted(trip for _, _, _, row in records for trip in row.get("round_trip_ns") or [])
    trips = f"a cache line there and back {statistics.median(apart):.0f} ns ({apart[0]:.0f}-{apart[-1]:.0f}); " if apart else ""
    rounds = 1 + max((turn for turn, *_ in records), default=0)
    return (f"{len(programs.cpus())} CPUs ({model}), Linux {os.uname().release}, load {os.getloadavg()[0]:.1f}; "
            f"{trips}{', '.join(libraries)}; {rounds} rounds; f32, sum; medians [middle half]")
