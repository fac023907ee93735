//! The repository checks itself: which crate may depend on which, where `unsafe` may stand, what is `no_std`, and
//! how long a file may be. ARCHITECTURE.md says the same in words.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests may panic")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// What is true of one crate.
struct Crate {
    folder: &'static str,
    /// The crates of ours it may depend on, without the `ringway-` prefix. Tests may use any.
    may_use: &'static [&'static str],
    no_std: bool,
    /// Files that may contain `unsafe`, relative to `src`; `*` for all.
    may_be_unsafe: &'static [&'static str],
}

const fn safe(folder: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { folder, may_use, no_std: false, may_be_unsafe: &[] }
}

const fn bare(folder: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { folder, may_use, no_std: true, may_be_unsafe: &[] }
}

const CRATES: &[Crate] = &[
    bare("stack/types", &[]),
    bare("stack/verbs", &[]),
    bare("stack/wire", &[]),
    bare("stack/rc", &["verbs", "wire"]),
    Crate { folder: "stack/mem", may_use: &["verbs"], no_std: false, may_be_unsafe: &["*"] },
    Crate { folder: "stack/ring", may_use: &["mem"], no_std: true, may_be_unsafe: &["shared.rs"] },
    safe("stack/sim", &["verbs", "mem", "wire", "rc"]),
    Crate {
        folder: "devices/tcp",
        may_use: &["verbs", "mem"],
        no_std: false,
        may_be_unsafe: &["options.rs", "ring.rs", "vectors.rs"],
    },
    safe("devices/shm", &["verbs", "mem", "ring"]),
    safe("devices/topology", &[]),
    Crate {
        folder: "devices/cuda",
        may_use: &["types", "mem"],
        no_std: false,
        may_be_unsafe: &["error.rs", "gpu.rs", "memory.rs", "stream.rs", "worker.rs"],
    },
    Crate { folder: "devices/cuda/stand-in", may_use: &["types"], no_std: false, may_be_unsafe: &["*"] },
    Crate {
        folder: "devices/roce",
        may_use: &["verbs", "mem", "rc", "wire"],
        no_std: false,
        may_be_unsafe: &[
            "link/system.rs",
            "link/udp/socket.rs",
            "link/xdp/bpf.rs",
            "link/xdp/ring.rs",
            "link/xdp/umem.rs",
        ],
    },
    Crate {
        folder: "devices/ibverbs",
        may_use: &["verbs", "mem", "rc", "wire", "topology"],
        no_std: false,
        may_be_unsafe: &[
            "hardware/completion_queue.rs",
            "hardware/context.rs",
            "hardware/library.rs",
            "hardware/memory.rs",
            "hardware/posting.rs",
            "hardware/queue_pair.rs",
        ],
    },
    safe("devices/wrap", &["verbs", "wire", "roce"]),
    safe("devices/perftest", &["verbs", "mem", "wire", "roce"]),
    safe("collectives/plan", &["types"]),
    Crate { folder: "collectives/reduce", may_use: &["types", "mem"], no_std: false, may_be_unsafe: &["*"] },
    Crate {
        folder: "collectives/cell",
        may_use: &["types", "mem", "reduce"],
        no_std: false,
        may_be_unsafe: &["shared.rs"],
    },
    safe("collectives/engine", &["types", "plan", "reduce", "verbs"]),
    safe("collectives/group", &["types", "plan", "verbs"]),
    bare("daemon/abi", &["types"]),
    safe(
        "daemon/service",
        &[
            "types", "verbs", "mem", "ring", "shm", "tcp", "roce", "wrap", "plan", "reduce", "engine",
            "group", "abi", "cell", "ibverbs", "cuda",
        ],
    ),
    safe("daemon/client", &["types", "abi", "ring", "mem", "reduce", "cell", "cuda"]),
    safe(
        "daemon/cli",
        &[
            "types", "abi", "mem", "ring", "verbs", "reduce", "client", "service", "perftest", "plan",
            "roce", "shm", "tcp", "wire", "wrap", "ibverbs", "topology",
        ],
    ),
    safe(
        "benches",
        &["types", "abi", "ring", "mem", "reduce", "client", "verbs", "tcp", "engine", "plan", "sim", "wire"],
    ),
    safe(
        "fuzz",
        &[
            "types", "verbs", "wire", "rc", "mem", "tcp", "shm", "ring", "cell", "engine", "group", "plan",
            "abi", "service", "perftest", "topology",
        ],
    ),
];

/// Lines a source file may have; tests in files of their own are exempt.
const FILE_LINES_MAX: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn manifest(folder: &Path) -> toml::Table {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
    into.sort();
}

fn library_sources(krate: &Crate) -> (PathBuf, Vec<PathBuf>) {
    let src = root().join(krate.folder).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(!files.is_empty(), "{} has no sources", krate.folder);
    (src, files)
}

#[test]
fn every_member_is_listed_here() {
    let workspace = manifest(&root());
    let members: BTreeSet<&str> = workspace["workspace"]["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|m| m.as_str().expect("a path"))
        .collect();
    let listed: BTreeSet<&str> = CRATES.iter().map(|c| c.folder).collect();
    assert_eq!(members, listed);
}

#[test]
fn arrows_point_down() {
    for krate in CRATES {
        let manifest = manifest(&root().join(krate.folder));
        let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
            continue;
        };
        for ours in dependencies.keys().filter_map(|name| name.strip_prefix("ringway-")) {
            assert!(krate.may_use.contains(&ours), "{} must not depend on ringway-{ours}", krate.folder);
        }
    }
}

#[test]
fn unsafe_stands_only_where_it_may() {
    for krate in CRATES {
        let (src, files) = library_sources(krate);
        for file in &files {
            let text = fs::read_to_string(file).expect("source");
            let name = file.strip_prefix(&src).expect("inside").display().to_string();
            let allowed = krate.may_be_unsafe.iter().any(|a| *a == "*" || *a == name);
            let used = text.lines().any(|line| {
                let code = line.split("//").next().unwrap_or_default();
                code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
            });
            assert!(allowed || !used, "{}/src/{name} must not contain unsafe code", krate.folder);
        }
        let is_library = src.join("lib.rs").exists();
        if krate.may_be_unsafe.is_empty() && is_library {
            let lib = fs::read_to_string(src.join("lib.rs")).expect("lib.rs");
            assert!(lib.contains("#![forbid(unsafe_code)]"), "{} must forbid unsafe code", krate.folder);
        }
    }
}

#[test]
fn the_bare_crates_are_no_std() {
    let checks = fs::read_to_string(root().join(".ci/run")).expect(".ci/run");
    let built =
        checks.split("x86_64-unknown-none --no-default-features").nth(1).expect("a build without std");
    let built = built.split("step").next().expect("its end");
    for krate in CRATES.iter().filter(|c| c.no_std) {
        let name = krate.folder.rsplit('/').next().expect("a name");
        let is_built = built.split_whitespace().any(|word| word == format!("ringway-{name}"));
        assert!(is_built, "{} must be built where there is no standard library", krate.folder);
        let lib = fs::read_to_string(root().join(krate.folder).join("src/lib.rs")).expect("lib.rs");
        assert!(lib.contains("no_std"), "{} must be no_std", krate.folder);
    }
}

#[test]
fn files_can_be_held_in_the_head() {
    for krate in CRATES {
        for file in library_sources(krate).1 {
            let is_test = file.components().any(|c| c.as_os_str() == "tests")
                || file.file_name().is_some_and(|n| n == "tests.rs");
            let lines = fs::read_to_string(&file).expect("source").lines().count();
            assert!(is_test || lines <= FILE_LINES_MAX, "{} has {lines} lines", file.display());
        }
    }
}
