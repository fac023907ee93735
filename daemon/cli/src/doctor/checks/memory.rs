//! Limits on memory, and the size of its pages.

use ringway_tcp::TcpError;

use crate::doctor::{
    facts::{Capability, Facts},
    finding::{Finding, Status},
};

/// The daemon's memory for data on its way takes that much, and clients register more.
const LOCKED_MIN: u64 = 256 << 20;

/// The command that raises the limit on locked memory for the shell it is typed in.
pub(super) fn raise(facts: &Facts) -> String {
    match facts.memlock.most {
        _ if facts.user.uid == 0 && !facts.user.can(Capability::IpcLock) => {
            "docker run --ulimit memlock=-1:-1 ...".to_owned()
        }
        None => "ulimit -l unlimited".to_owned(),
        Some(_) => facts.as_root("prlimit --pid $$ --memlock=unlimited:unlimited"),
    }
}

/// What counts where there are RDMA devices, and where there are none.
const REGISTERED: &str = "memory registered with RDMA devices counts, and is refused beyond it; so do io_uring, what it sends \
                          without a copy, and roce-xdp's frames";
const OTHERS: &str = "io_uring counts and what it sends without a copy, which is copied beyond it, and roce-xdp's frames, which \
                      are refused";

pub(super) fn memlock(facts: &Facts) -> Finding {
    let name = "memlock";
    let Some(limit) = facts.memlock.bytes else {
        return Finding::ok(name, "unlimited");
    };
    let found = format!("{} may be locked", super::bytes(limit));
    if facts.user.can(Capability::IpcLock) {
        return Finding::ok(name, format!("{found}, which does not bind this process: it has CAP_IPC_LOCK"));
    }
    let has_ports = !facts.ports().is_empty();
    let is_short = has_ports && limit < LOCKED_MIN || facts.tried.io_uring == Err(TcpError::Memory);
    let status = if is_short { Status::Warn } else { Status::Note };
    let why = match has_ports {
        true => REGISTERED,
        false => OTHERS,
    };
    let forever = match facts.user.uid {
        0 => "echo '* - memlock unlimited' > /etc/security/limits.d/90-ringway.conf",
        _ => "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-ringway.conf",
    };
    Finding::new(name, status, found)
        .why(why)
        .mend(format!("{}   # for now", raise(facts)))
        .mend(format!("{forever}   # from the next login on"))
}

pub(super) fn huge_pages(facts: &Facts) -> Finding {
    let (name, huge) = ("huge_pages", &facts.huge);
    let setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let why = "regions larger than the processor's caches are walked in pages of 4 KiB, which takes large collectives longer";
    let Some(shared) = &huge.shared else {
        let finding =
            Finding::new(name, Status::Note, "this kernel has no transparent huge pages for shared memory");
        return finding.why(why);
    };
    let own = huge.own.as_deref().unwrap_or("unknown");
    let reserved = huge.reserved.unwrap_or(0);
    let found = format!("shmem {shared}, anon {own}, {reserved} reserved (of which Ringway uses none)");
    let collapses = facts.version() >= (6, 1) && shared != "deny";
    match shared.as_str() {
        "always" | "advise" | "within_size" | "force" => Finding::ok(name, found),
        _ if collapses => {
            Finding::ok(name, format!("{found}; memory files are collapsed into huge pages all the same"))
        }
        _ => Finding::new(name, Status::Warn, found).why(why).mend(facts.write("advise", setting)),
    }
}
