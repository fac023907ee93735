"""Times one collective of torch.distributed over Gloo as peer.c does for MPI; prints the same JSON lines.

python3 gloo.py RANKS PORT OPERATION SECONDS BYTES...
"""

import json
import os
import statistics
import subprocess
import sys
import time

# As in peer.c: between nodes every call is timed by itself.
ALIGN_FROM_BYTES = int(os.environ.get("PEER_ALIGN_FROM_BYTES", 4096))
WARMUP = 3


def buffers(torch, operation, size, ranks):
    """One rank's input and output; the same where the operation has only an in-place form."""
    total = size // 4 // ranks * ranks
    block = total // ranks
    lengths = {"all_gather": (block, total), "reduce_scatter": (total, block), "all_to_all": (total, total)}
    if operation in lengths:
        return tuple(torch.zeros(n) for n in lengths[operation])
    one = torch.zeros(size // 4)
    return one, one


def caller(dist, operation, source, into):
    calls = {
        "allreduce": lambda: dist.all_reduce(into),
        "reduce": lambda: dist.reduce(into, 0),
        "broadcast": lambda: dist.broadcast(into, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(into, source),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(into, source),
        "all_to_all": lambda: dist.all_to_all_single(into, source),
    }
    return calls[operation]


def wrong_elements(torch, operation, source, into, call, rank, ranks):
    source.fill_(float(rank + 1))
    call()
    total = float(ranks * (ranks + 1) // 2)
    by_source = torch.arange(1, ranks + 1, dtype=torch.float32)
    expected = {
        "allreduce": torch.full_like(into, total),
        "reduce": torch.full_like(into, total) if rank == 0 else into.clone(),
        "broadcast": torch.ones_like(into),
        "reduce_scatter": torch.full_like(into, total),
    }.get(operation)
    if expected is None:
        expected = by_source.repeat_interleave(into.numel() // ranks)
    return int((into != expected).sum())


def rank_main(rank, ranks, operation, seconds, sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    dist.init_process_group("gloo", rank=rank, world_size=ranks)

    def slowest(values):
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    for size in sizes:
        source, into = buffers(torch, operation, size, ranks)
        call = caller(dist, operation, source, into)
        errors = torch.tensor([wrong_elements(torch, operation, source, into, call, rank, ranks)])
        dist.all_reduce(errors)

        def touch():
            into[::16].sum()
            source.fill_(1.0)

        warmups = []
        for _ in range(WARMUP):
            touch()
            begun = time.perf_counter()
            call()
            warmups.append(time.perf_counter() - begun)
        each = slowest([min(warmups)])[0]
        samples = max(5, min(5000, int(seconds / each)))
        times = []
        for _ in range(samples):
            touch()
            if size >= ALIGN_FROM_BYTES:
                dist.barrier()
            begun = time.perf_counter()
            call()
            times.append((time.perf_counter() - begun) * 1e6)
            if size >= ALIGN_FROM_BYTES:
                dist.barrier()
        times = sorted(slowest(times))
        if rank == 0:
            quantile = {"min": times[0], "p50": statistics.median_low(times),
                        "p99": times[min(len(times) - 1, int(len(times) * 0.99))], "max": times[-1]}
            print(json.dumps({"library": f"Gloo of torch {torch.__version__}", "operation": operation,
                              "bytes": max(source.numel(), into.numel()) * 4, "ranks": ranks,
                              "in_place": source is into, "samples": samples, "time_us": quantile,
                              "errors": int(errors)}), flush=True)
    # Taking the group down waits for ever when another rank has gone already, which is no failure here.
    try:
        dist.barrier()
    except RuntimeError:
        pass
    os._exit(0)


def main():
    ranks, port, operation, seconds = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
    sizes = [int(size) for size in sys.argv[5:]]
    if "RANK" in os.environ:
        rank_main(int(os.environ["RANK"]), ranks, operation, seconds, sizes)
        return
    base = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", **os.environ, "MASTER_PORT": port}
    # Network namespaces that stand for nodes, each with as many ranks as the others.
    nodes = [name for name in os.environ.get("PEER_NODES", "").split(",") if name]

    def start(rank):
        inside = ["ip", "netns", "exec", nodes[rank * len(nodes) // ranks]] if nodes else []
        return subprocess.Popen([*inside, sys.executable, *sys.argv], env={**base, "RANK": str(rank)})

    started = [start(rank) for rank in range(ranks)]
    failed = [process.wait() for process in started]
    sys.exit(next((status for status in failed if status), 0))


if __name__ == "__main__":
    main()
