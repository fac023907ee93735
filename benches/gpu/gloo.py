"""Times allreduce of torch.distributed over Gloo on CUDA tensors, in the stream; prints a JSON object for each size.

python3 gloo.py RANKS SECONDS BYTES...
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

WARMUP = 3
SAMPLES_MAX = 500


def rank_main(rank, ranks, seconds, sizes):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in sizes:
        tensor = torch.full((size // 4,), float(rank + 1), device="cuda")
        dist.all_reduce(tensor)
        wrong = int((tensor != float(ranks * (ranks + 1) // 2)).sum())
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times, started = [], time.monotonic()
        for sample in range(SAMPLES_MAX):
            tensor.fill_(1.0)
            torch.cuda.synchronize()
            dist.barrier()
            before.record()
            dist.all_reduce(tensor)
            after.record()
            torch.cuda.synchronize()
            if sample >= WARMUP:
                times.append(before.elapsed_time(after) * 1e3)
            over = torch.tensor([time.monotonic() - started])
            dist.all_reduce(over, dist.ReduceOp.MAX)
            if sample >= WARMUP + 4 and over.item() > seconds:
                break
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if rank == 0:
            row = {"bytes": size, "time_us": statistics.median(slowest.tolist()), "errors": wrong}
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def main():
    ranks, seconds, sizes = int(sys.argv[1]), float(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    if "RANK" in os.environ:
        return rank_main(int(os.environ["RANK"]), ranks, seconds, sizes)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *sys.argv]
    started = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(ranks)]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
