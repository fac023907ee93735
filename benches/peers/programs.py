"""The programs that are compared: how each is built, started and read."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from table import UNREGISTERED_AT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = {
    "openmpi": ("mpicc.openmpi", "mpirun.openmpi", ["openmpi-bin", "libopenmpi-dev"]),
    "mpich": ("mpicc.mpich", "mpirun.mpich", ["mpich", "libmpich-dev"]),
}


# Which operations on ordinary slices have a form in place.
SLICES_IN_PLACE = ("allreduce", "reduce", "broadcast")

# Calls between nodes take long enough to be timed one by one.
ALIGN_ALL = {"PEER_ALIGN_FROM_BYTES": "0"}


class Failed(Exception):
    """A program could not be built or run, or gave a wrong result."""


@dataclass(frozen=True)
class Work:
    """What one start of a program measures."""

    operation: str
    ranks: int
    sizes: tuple
    forms: str  # out, in or both
    seconds: float


@dataclass
class Program:
    """Something that measures collectives. A setting is a way to run it; the best one counts."""

    name: str
    settings: object  # Work -> names of settings, the one that the program has by itself first
    command: object  # (Work, setting) -> argument list, environment
    # Nothing is gained by repeating what takes seconds to start and is a hundred times slower.
    rounds_max: int = 1 << 30

    def measure(self, work, setting):
        """The rows of one run: one for each size and form."""
        arguments, environment = self.command(work, setting)
        # A run that takes this much longer than asked for hangs.
        patience = 60 + 30 * work.seconds * len(work.sizes)
        done = subprocess.Popen(arguments, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            output, errors = done.communicate(timeout=patience)
        except BaseException as error:
            # Whatever it has started would go on, beside what is measured next.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(done.pid, signal.SIGKILL)
            done.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"{self.name} ({setting}) did not end within {patience:.0f} s: "
                             f"{' '.join(map(str, arguments))}") from error
            raise
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        wrong = sum(row.get("errors") or 0 for row in rows)
        if done.returncode != 0 or wrong or not rows:
            what = f"{wrong} wrong elements" if wrong else f"exit status {done.returncode}"
            tail = "\n".join((errors or output).strip().splitlines()[-8:])
            raise Failed(f"{self.name} ({setting}): {what}: {' '.join(map(str, arguments))}\n{tail}")
        return rows


def cpus():
    """The CPUs that may be used."""
    return sorted(os.sched_getaffinity(0))


def missing_packages(names):
    """Debian packages without which these libraries cannot be measured."""
    lacking = []
    for name in names:
        compiler, launcher, packages = PACKAGES[name]
        if not (shutil.which(compiler) and shutil.which(launcher)):
            lacking += packages
    return lacking


def build(name, folder):
    """Compiles peer.c against one MPI; the program's path."""
    folder.mkdir(parents=True, exist_ok=True)
    program, source = folder / f"peer.{name}", HERE / "peer.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        command = [PACKAGES[name][0], "-O3", "-march=native", "-Wall", "-pthread", "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"peer.c does not compile: {' '.join(command)}\n{done.stderr}")
    return program


def _processors():
    """The two whose distance peer.c measures, where there are two."""
    return {"PEER_CPUS": ",".join(map(str, cpus()[:2]))} if len(cpus()) > 1 else {}


def _mpi_arguments(program, work):
    return [str(program), work.operation, work.forms, str(work.seconds), *map(str, work.sizes)]


def openmpi(folder, huge_pages):
    """Open MPI over shared memory. `default` is what one gets without asking for anything but places for the ranks."""
    program = build("openmpi", folder)
    no_cma = ["--mca", "btl_vader_single_copy_mechanism", "none"]
    coll_sm = ["--mca", "coll_sm_priority", "100"]
    chosen = {"default": [], "no-cma": no_cma, "coll-sm": coll_sm}
    chosen |= {f"pinned {name}".removesuffix(" default"): options for name, options in chosen.items()}

    def settings(work):
        if work.ranks <= len(cpus()):
            return [name for name in chosen if not name.startswith("pinned")]
        return list(chosen)

    def command(work, setting):
        arguments = ["mpirun.openmpi", "-n", str(work.ranks)]
        if os.geteuid() == 0:
            arguments.append("--allow-run-as-root")
        if work.ranks <= len(cpus()):
            arguments += ["--bind-to", "core"]
        elif setting.startswith("pinned"):
            arguments += ["--map-by", "core:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"]
        else:
            arguments += ["--oversubscribe", "--bind-to", "none"]
        if work.ranks > len(cpus()):
            arguments += ["--mca", "mpi_yield_when_idle", "1"]
        arguments += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader", *chosen[setting]]
        return arguments + _mpi_arguments(program, work), _processors() | ({"PEER_HUGE": "1"} if huge_pages else {})

    return Program("openmpi", settings, command)


def mpich(folder, huge_pages):
    """MPICH over UCX, with all of UCX's shared memory transports or the plain one."""
    program = build("mpich", folder)

    def command(work, setting):
        environment = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"} if work.ranks > len(cpus()) else {}
        environment |= _processors() | ({"PEER_HUGE": "1"} if huge_pages else {})
        environment["UCX_TLS"] = {"cma": "sm,self", "posix": "posix,self"}[setting]
        binding = ["-bind-to", "core"] if work.ranks <= len(cpus()) else []
        return ["mpirun.mpich", "-n", str(work.ranks), *binding, *_mpi_arguments(program, work)], environment

    return Program("mpich", lambda _work: ["posix", "cma"], command)


def gloo(python):
    """torch.distributed's Gloo; gloo.py starts its ranks itself."""

    def command(work, _setting):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return [python, str(HERE / "gloo.py"), str(work.ranks), str(port), work.operation, str(work.seconds),
                *map(str, work.sizes)], {"OMP_NUM_THREADS": "1"}

    return Program("gloo", lambda _work: ["tcp"], command, rounds_max=2)


def has_torch(python):
    """Whether that Python can import torch."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return bool(python) and subprocess.run([python, "-c", find], capture_output=True, check=False).returncode == 0


def ordinary(work, of_all):
    """What is measured of it on ordinary memory, in the forms that slices have: every size of an allreduce, and of all
    operations, where asked, the size that a limit is set for. None where that is nothing."""
    sizes = work.sizes
    if work.operation != "allreduce":
        sizes = tuple(size for size in sizes if of_all and size == UNREGISTERED_AT)
    if not sizes:
        return None
    return replace(work, sizes=sizes, forms=work.forms if work.operation in SLICES_IN_PLACE else "out")


def ringway(program, extra, ordinary_of_all=False):
    """`ringway perf`: registered buffers with the floor; and ordinary memory."""

    def settings(work):
        return ["registered"] + ["unregistered"] * (ordinary(work, ordinary_of_all) is not None)

    def command(work, setting):
        how = "--floor"
        if setting == "unregistered":
            work, how = ordinary(work, ordinary_of_all), "--unregistered"
        return [program, "perf", work.operation, "--ranks", str(work.ranks), "--sizes", ",".join(map(str, work.sizes)),
                "--in-place", {"out": "no", "in": "yes", "both": "both"}[work.forms], "--seconds", str(work.seconds),
                how, "--round-trip", "--json", *extra], {}

    return Program("ringway", settings, command)


def openmpi_across(folder, link):
    """Open MPI on two nodes: TCP between them, shared memory within each. Its ranks are free, bound to a processor each, or
    all of a node to the one that our daemon has there."""
    program = build("openmpi", folder)
    free = ["--bind-to", "none"]
    chosen = {"default": free, "pinned": ["--bind-to", "core:overload-allowed"], "by node": free}

    def command(work, setting):
        by_node = setting == "by node"
        own = ["taskset", "-c", str(link.nodes[0].cpu)] if by_node else []
        hosts = ",".join(f"{node.address}:{work.ranks // len(link.nodes)}" for node in link.nodes)
        arguments = ["mpirun.openmpi", "-n", str(work.ranks), "--host", hosts, "--oversubscribe",
                     "-x", "PEER_ALIGN_FROM_BYTES", "--mca", "plm_rsh_agent", str(link.agent),
                     "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca", "mpi_yield_when_idle", "1",
                     "--mca", "btl_tcp_if_include", link.interface, "--mca", "oob_tcp_if_include", link.interface]
        if os.geteuid() == 0:
            arguments.append("--allow-run-as-root")
        environment = ALIGN_ALL | ({"PEER_BY_NODE": "1"} if by_node else {})
        return [*link.nodes[0].inside, *own, *arguments, *chosen[setting], *_mpi_arguments(program, work)], environment

    return Program("openmpi", lambda _work: list(chosen), command)


def gloo_across(python, link):
    """Gloo on two nodes: it has TCP only, also within a node."""
    one = gloo(python)

    def command(work, setting):
        arguments, environment = one.command(work, setting)
        nodes = {"PEER_NODES": ",".join(node.namespace for node in link.nodes),
                 "MASTER_ADDR": link.nodes[0].address, "GLOO_SOCKET_IFNAME": link.interface}
        return arguments, environment | nodes | ALIGN_ALL

    return Program("gloo", one.settings, command)


def ringway_across(program, link, extra):
    """`ringway perf` with the link's daemons."""
    sockets = [part for node in link.nodes for part in ("--socket", str(node.socket))]

    def command(work, _setting):
        return [program, "perf", work.operation, "--ranks", str(work.ranks), "--sizes", ",".join(map(str, work.sizes)),
                "--in-place", {"out": "no", "in": "yes"}[work.forms], "--seconds", str(work.seconds), "--json", *sockets,
                *extra], {}

    return Program("ringway", lambda _work: ["registered"], command)


def find_ringway():
    """The newest release build."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "release" / "ringway"
    if not program.exists():
        sys.exit(f"{program} is missing; build it: cargo build --release --bins, or give --ringway PATH")
    return str(program)
