//! What every path needs of the kernel, and what this process may do.

use ringway_tcp::TcpError;

use crate::doctor::{
    facts::{Capability, Facts},
    finding::{Finding, Status},
};

/// What the tcp device and memory files are made for.
const FLOOR: (u32, u32) = (6, 1);

pub(super) fn kernel(facts: &Facts) -> Finding {
    let found = format!("Linux {}", facts.release);
    if facts.version() >= FLOOR {
        return Finding::ok("kernel", found);
    }
    let why = "Ringway is made for Linux 6.1 or newer: before, io_uring lacks what the tcp device needs, and memory files get \
               huge pages only where shmem_enabled says so";
    Finding::new("kernel", Status::Warn, found).why(why)
}

pub(super) fn shared_memory(facts: &Facts) -> Finding {
    let (name, tried) = ("shared_memory", &facts.tried);
    match (&tried.memory, &tried.shm) {
        (Ok(()), Ok(())) => Finding::ok(name, "sealed memory files can be made, and the device shm"),
        (Err(error), _) => Finding::new(name, Status::Fail, format!("no memory file can be made: {error}"))
            .why("clients and the daemon share nothing but such memory: nothing works without")
            .mend("docker run --security-opt seccomp=unconfined ...   # a container's profile may forbid memfd_create"),
        (_, Err(error)) => Finding::new(name, Status::Warn, format!("the device shm cannot be made: {error}"))
            .why("daemons of this host, of containers for example, would talk by TCP"),
    }
}

pub(super) fn tcp(facts: &Facts) -> Finding {
    match &facts.tried.sockets {
        Ok(()) => Finding::ok("tcp", "sockets connect, and the device tcp-epoll can be made"),
        Err(error) => Finding::new("tcp", Status::Fail, error.as_str())
            .why("nodes could not reach each other, nor this one itself")
            .mend(facts.as_root("ip link set lo up")),
    }
}

pub(super) fn io_uring(facts: &Facts) -> Finding {
    let name = "io_uring";
    let disabled = facts.io_uring_disabled.as_deref().unwrap_or("0");
    let Err(error) = &facts.tried.io_uring else {
        return Finding::ok(name, "a ring can be made: the device tcp works");
    };
    let finding = Finding::new(name, Status::Warn, format!("no ring can be made: {error}"));
    let finding =
        finding.why("between nodes tcp-epoll is used instead, with more system calls for each message");
    match error {
        TcpError::Forbidden if disabled != "0" => {
            finding.mend(facts.as_root("sysctl -w kernel.io_uring_disabled=0"))
        }
        TcpError::Forbidden => finding
            .mend("docker run --security-opt seccomp=unconfined ...   # or a profile that has io_uring"),
        TcpError::Memory => finding.mend(super::memory::raise(facts)),
        _ => finding,
    }
}

pub(super) fn privileges(facts: &Facts) -> Finding {
    let (name, user) = ("privileges", &facts.user);
    let who = if user.uid == 0 { "root".to_owned() } else { format!("user {}", user.uid) };
    let names: Vec<&str> =
        Capability::ALL.iter().filter(|one| user.has(**one)).map(|one| one.name()).collect();
    let capabilities = match names.as_slice() {
        [] => "without capabilities (shm, tcp and roce-udp need none)".to_owned(),
        all if all.len() == Capability::ALL.len() => "with all capabilities that a path wants".to_owned(),
        some => format!("with {}", some.join(", ")),
    };
    let allowed = if facts.user_namespaces { "allowed" } else { "forbidden" };
    let found = format!("{who} {capabilities}; user namespaces {allowed}");
    if user.in_user_namespace && !names.is_empty() {
        let why = "this is a user namespace: the kernel does not let its capabilities load XDP programs or exceed limits on \
                   locked memory";
        return Finding::new(name, Status::Note, found).why(why);
    }
    Finding::ok(name, found)
}
