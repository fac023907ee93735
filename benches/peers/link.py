"""Two nodes on this machine: network namespaces that one veth pair joins, with a daemon in each."""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import programs

PORT = 7411
PATIENCE_S = 20
# Classes that connections fall into by their ports, where their rate is limited.
FLOWS = 64
# What mpirun starts its own daemons with: the host's address, and the command's words. A node has its own host name.
AGENT = """#!/bin/sh
host=$1
shift
case $host in
{cases}esac
place=
[ -z "$PEER_BY_NODE" ] || place="taskset -c $cpu"
exec ip netns exec "$namespace" $place unshare --uts sh -c "hostname node-$host; $*"
"""


@dataclass
class Node:
    namespace: str
    address: str
    socket: Path
    cpu: int

    @property
    def inside(self):
        """What a command starts with to be run here."""
        return ["ip", "netns", "exec", self.namespace]


@dataclass
class Link:
    folder: Path
    mtu: int
    congestion: str
    flow_rate: str
    interface: str = "rw0"
    nodes: list = field(default_factory=list)
    daemons: list = field(default_factory=list)

    @property
    def agent(self):
        return self.folder / "agent"

    def describe(self):
        each = f", {self.flow_rate} for each of our connections" if self.flow_rate else ""
        return f"veth pair, MTU {self.mtu}, {self.congestion} congestion control{each}"


def command(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise programs.Failed(f"{' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def missing():
    """Why there can be no link here; None when there can be."""
    if os.geteuid() != 0:
        return "network namespaces can be made by root only"
    lacking = [name for name in ("ip", "unshare") if not shutil.which(name)]
    return f"{' and '.join(lacking)} missing: sudo apt-get install iproute2 util-linux" if lacking else None


def join(link):
    """Makes the namespaces and the pair."""
    own, cpus = os.getpid(), programs.cpus()
    for index in range(2):
        socket, cpu = link.folder / f"node{index}.sock", cpus[max(len(cpus) * (index + 1) // 2 - 1, 0)]
        node = Node(f"ringway-{own}-{index}", f"10.74.12.{index + 1}", socket, cpu)
        command("ip", "netns", "add", node.namespace)
        link.nodes.append(node)
    one, two = link.nodes
    command("ip", "-n", one.namespace, "link", "add", link.interface, "type", "veth", "peer", "name", link.interface,
            "netns", two.namespace)
    for node in link.nodes:
        command("ip", "-n", node.namespace, "link", "set", "lo", "up")
        command("ip", "-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", link.interface)
        command("ip", "-n", node.namespace, "link", "set", link.interface, "mtu", str(link.mtu), "up")
        name = "/proc/sys/net/ipv4/tcp_congestion_control"
        if link.congestion:
            command(*node.inside, "sh", "-c", f"echo {link.congestion} > {name}")
        link.congestion = command(*node.inside, "cat", name)
    cases = "".join(f"    {node.address}) namespace={node.namespace} cpu={node.cpu} ;;\n" for node in link.nodes)
    link.agent.write_text(AGENT.format(cases=cases))
    link.agent.chmod(0o700)


def limit_flows(link):
    """Gives each connection of our daemons so much at most, as bonded links and networks of clouds do."""
    for node in link.nodes:
        tc = [*node.inside, "tc"]
        command(*tc, "qdisc", "add", "dev", link.interface, "root", "handle", "1:", "htb")
        for flow in range(FLOWS):
            command(*tc, "class", "add", "dev", link.interface, "parent", "1:", "classid", f"1:{flow + 1:x}", "htb",
                    "rate", link.flow_rate, "burst", "256k")
            # Whoever connects has a port of the system's choice, which are even ones and differ.
            for own, others in (("sport", "dport"), ("dport", "sport")):
                command(*tc, "filter", "add", "dev", link.interface, "parent", "1:", "protocol", "ip", "u32",
                        "match", "ip", own, str(PORT), "0xffff",
                        "match", "ip", others, str(flow * 2), hex((FLOWS - 1) * 2), "flowid", f"1:{flow + 1:x}")


def start_daemons(link, program, extra):
    key = link.folder / "cluster.key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    for node in link.nodes:
        # A node has processors of its own: otherwise both engine threads may share one while ranks wait on the other.
        log = open(link.folder / f"{node.socket.stem}.log", "wb")
        arguments = [*node.inside, program, "daemon", "--socket", node.socket, "--listen", f"{node.address}:{PORT}",
                     "--cluster-key-file", key, "--engine-cpu", str(node.cpu), *extra]
        link.daemons.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    deadline = time.monotonic() + PATIENCE_S
    while not all(node.socket.exists() for node in link.nodes):
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in link.daemons):
            logs = "\n".join(path.read_text() for path in sorted(link.folder.glob("*.log")))
            raise programs.Failed(f"a daemon does not serve:\n{logs}")
        time.sleep(0.01)


@contextlib.contextmanager
def opened(program, daemon_arguments, mtu, congestion, flow_rate):
    """The two nodes, and their daemons; gone at the end."""
    link = Link(Path(tempfile.mkdtemp(prefix="ringway-peers-")), mtu, congestion, flow_rate)
    try:
        join(link)
        if link.flow_rate:
            limit_flows(link)
        start_daemons(link, program, daemon_arguments)
        yield link
    finally:
        for daemon in link.daemons:
            daemon.terminate()
        for daemon in link.daemons:
            daemon.wait(PATIENCE_S)
        for node in link.nodes:
            subprocess.run(["ip", "netns", "del", node.namespace], check=False)
        shutil.rmtree(link.folder, ignore_errors=True)
