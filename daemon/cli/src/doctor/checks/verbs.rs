//! The library for RDMA hardware, and whether this program uses it.

use crate::doctor::{
    facts::Facts,
    finding::{Finding, Status},
};

/// How a distribution installs things.
struct Packages {
    /// Its name, and those of what is like it.
    names: &'static [&'static str],
    /// libibverbs with its drivers.
    library: &'static str,
    /// What building with it needs.
    headers: &'static str,
}

/// The last is for all others.
const PACKAGES: [Packages; 4] = [
    Packages {
        names: &["debian", "ubuntu"],
        library: "apt-get install -y libibverbs1 ibverbs-providers",
        headers: "apt-get install -y libibverbs-dev librdmacm-dev libclang-dev",
    },
    Packages {
        names: &["suse", "opensuse", "sles"],
        library: "zypper install -y libibverbs1 rdma-core",
        headers: "zypper install -y rdma-core-devel clang-devel",
    },
    Packages {
        names: &["arch"],
        library: "pacman -S --noconfirm rdma-core",
        headers: "pacman -S --noconfirm rdma-core clang",
    },
    Packages {
        names: &["fedora", "rhel"],
        library: "dnf install -y libibverbs",
        headers: "dnf install -y rdma-core-devel clang-devel",
    },
];

pub(super) fn verbs(facts: &Facts) -> Finding {
    let name = "verbs";
    let has_ports = !facts.ports().is_empty();
    let built = match facts.tried.has_verbs {
        true => "this program is built for it",
        false => "this program is built without it",
    };
    let Some(library) = &facts.libibverbs else {
        let found = format!("libibverbs.so.1 is not installed; {built}");
        return match has_ports {
            false => Finding::absent(name, found),
            true => Finding::new(name, Status::Warn, found)
                .why("RDMA devices cannot be used, here or with the tools of their makers")
                .mend(facts.as_root(packages(facts).library)),
        };
    };
    let found = format!("{library}, {} drivers; {built}", facts.providers);
    match (has_ports, facts.tried.has_verbs) {
        (false, false) => Finding::absent(name, found),
        (true, false) => Finding::new(name, Status::Warn, found)
            .why("RDMA devices are not used: packets go through the kernel")
            .mend(facts.as_root(packages(facts).headers))
            .mend("cargo build --release -p ringway --bins --features verbs"),
        (true, true) if facts.providers == 0 => Finding::new(name, Status::Warn, found)
            .why("libibverbs finds no device without its driver")
            .mend(facts.as_root(packages(facts).library)),
        (_, true) => Finding::ok(name, found),
    }
}

fn packages(facts: &Facts) -> &'static Packages {
    let [.., usual] = &PACKAGES;
    PACKAGES.iter().find(|packages| facts.is_distribution(packages.names)).unwrap_or(usual)
}
