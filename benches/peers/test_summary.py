"""What is judged, and what a run says of it: python3 -B -m unittest discover benches/peers"""

import sys
import unittest

sys.dont_write_bytecode = True

import programs
import summary
import table
from table import KIB, MIB


def records(operation, ranks, size, times, apart=50):
    """One round, of programs and settings with a time each."""
    def row(time_us, trips):
        return {"operation": operation, "ranks": ranks, "bytes": size, "in_place": False, "path": "cell",
                "time_us": {"p50": time_us}, "round_trip_ns": trips}
    floor = times.pop("floor")
    found = [[0, *name.split(), row(time, [apart, apart])] for name, time in times.items()]
    own = next(record for record in found if record[1:3] == ["ringway", "registered"])
    own[3] |= {"floor_us": floor, "round_trip_ns": [apart] * 3}
    return found


def cell(operation="allreduce", ranks=2, size=64 * MIB, processors=2, **times):
    times = {"ringway registered": 1.0, "openmpi default": 10.0, "floor": 0.9} | {k.replace("_", " "): v for k, v in times.items()}
    return table.cells(records(operation, ranks, size, times), processors)[0]


class Judged(unittest.TestCase):
    def test_limits_are_those_of_two_ranks_and_of_four_on_two_processors(self):
        self.assertEqual(table.required("allreduce", 4 * KIB, 2, 2), (0.6, None))
        self.assertEqual(table.required("allreduce", 64 * MIB, 4, 2), (0.3, 0.75))
        self.assertEqual(table.required("broadcast", 64, 4, 2), (1.1, None))
        for ranks, processors in (1, 2), (8, 2), (4, 4), (8, 8), (2, 1):
            self.assertEqual(table.required("allreduce", 4 * KIB, ranks, processors), (None, None))
        self.assertIsNone(cell(ranks=8, processors=8).reached)

    def test_every_limit_can_be_missed(self):
        self.assertIs(cell().reached, True)
        self.assertIs(cell(openmpi_default=2.0).reached, False)
        self.assertIs(cell(floor=0.5).reached, False)
        self.assertIs(cell("all_to_all", ringway_unregistered=2.6).reached, False)
        self.assertIs(cell("all_to_all", size=MIB, ringway_unregistered=2.6).reached, True)

    def test_only_a_kernel_that_is_not_beaten_is_a_bound(self):
        missed = {"size": 256, "ringway_registered": 1.0, "openmpi_default": 0.9}
        self.assertIs(cell(floor=0.95, **missed).is_out_of_reach(), True)
        self.assertIs(cell(floor=1.5, **missed).is_out_of_reach(), False)
        slower = {"size": 3584, "ringway_registered": 1.0, "openmpi_default": 0.9}
        self.assertIs(cell(floor=0.8, **slower).is_out_of_reach(), False)
        self.assertIs(cell(floor=0.95, **slower).is_out_of_reach(), True)

    def test_what_could_not_be_compared_is_not_judged(self):
        found = records("allreduce", 2, 64 * MIB, {"ringway registered": 1.0, "openmpi default": 10.0, "floor": 0.9})
        found[0][3]["round_trip_ns"] = [50, 50, 300]
        self.assertIsNone(table.cells(found, 2)[0].reached)


class Told(unittest.TestCase):
    def test_ranges_are_cut_where_limits_change(self):
        found = [cell(size=size, openmpi_default=1.0 / ratio) for size, ratio in
                 ((64, 0.1), (256, 0.2), (2 * KIB, 0.3), (8 * KIB, 0.4), (16 * KIB, 0.5), (8 * MIB, 0.6), (16 * MIB, 0.7))]
        line, = summary.ranges(found)
        self.assertEqual(line[:7], ["allreduce", "2", "0.10", "0.20 - 0.30", "0.40", "0.50 - 0.60", "0.70"])
        self.assertEqual(line[7:9], ["90 %", "90 %"])
        self.assertEqual(line[-1], "4 of 7")
        self.assertEqual(len(line), len(summary.RANGES_HEAD))

    def test_what_is_missed_is_told_with_its_figures(self):
        found = [cell(), cell(openmpi_default=2.0), cell(ranks=8, processors=8)]
        line, = summary.missed(found)
        told = dict(zip(summary.MISSED_HEAD, line))
        self.assertEqual((told["ours us"], told["Open MPI us"], told["allowed"], told["verdict"]), ("1.00", "2.00", "0.30", "FLOOR"))
        text = summary.verdict(found)
        self.assertIn("1 of 2 cells reach", text)
        self.assertIn("of 1 others nothing is required", text)

    def test_bandwidth_goes_with_the_ranks(self):
        lines = list(summary.scaling([cell(ranks=4, size=MIB, processors=4), cell(ranks=1, size=MIB, processors=4)]))
        column = summary.SCALING_HEAD.index
        self.assertEqual([line[column("ranks")] for line in lines], ["1", "4"])
        self.assertEqual([line[column("busbw GB/s")] for line in lines], ["0.00", "1573"])
        self.assertEqual(summary.sharing([cell(ranks=4)], 2), "4 ranks share 2 CPUs")


class Planned(unittest.TestCase):
    def test_ordinary_memory_is_measured_where_asked(self):
        work = lambda operation: programs.Work(operation, 2, (16 * MIB, 64 * MIB), "both", 0.1)
        self.assertEqual(programs.ordinary(work("allreduce"), False), work("allreduce"))
        self.assertIsNone(programs.ordinary(work("reduce"), False))
        asked = programs.ordinary(work("all_to_all"), True)
        self.assertEqual((asked.sizes, asked.forms), ((64 * MIB,), "out"))
        self.assertEqual(programs.ringway("ringway", [], True).settings(work("reduce")), ["registered", "unregistered"])


if __name__ == "__main__":
    unittest.main()
