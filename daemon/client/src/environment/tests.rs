use core::net::SocketAddr;
use std::{collections::BTreeMap, io};

use super::{Environment, EnvironmentError, Launcher, Variables, slurm::first_host};

fn read(variables: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
    read_as(variables, 1000)
}

fn read_as(variables: &[(&str, &str)], uid: u32) -> Result<Environment, EnvironmentError> {
    let map: BTreeMap<&str, &str> = variables.iter().copied().collect();
    Environment::from_variables(Variables {
        lookup: &|name| map.get(name).map(|value| (*value).to_owned()),
        resolve: &|host, port| {
            let address = match host {
                "node001" | "master" => "10.0.0.1".parse(),
                other => other.parse(),
            };
            address
                .map(|ip| SocketAddr::new(ip, port))
                .map_err(|_| io::Error::new(io::ErrorKind::NotFound, "no such host"))
        },
        uid,
    })
}

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "master"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
];

const OPENMPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "prterun-host-123@1"),
];

const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "5"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_NUM_TASKS", "16"),
    ("SLURM_STEP_NUM_NODES", "4"),
    ("SLURM_STEP_NODELIST", "node[001-004]"),
    ("SLURM_JOB_ID", "77"),
    ("SLURM_STEP_ID", "0"),
];

const RINGWAY: &[(&str, &str)] = &[
    ("RINGWAY_RANK", "0"),
    ("RINGWAY_WORLD_SIZE", "4"),
    ("RINGWAY_ID", "00112233445566778899aabbccddeeff@10.9.9.9:7000"),
];

fn with<'a>(base: &[(&'a str, &'a str)], changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    base.iter().chain(changes).copied().collect()
}

fn without<'a>(base: &[(&'a str, &'a str)], name: &str) -> Vec<(&'a str, &'a str)> {
    base.iter().filter(|(n, _)| *n != name).copied().collect()
}

#[test]
fn every_launcher_is_recognised() {
    let table = [
        (TORCHRUN, Launcher::Torchrun, 3, 8, Some(1), Some("10.0.0.1:7411")),
        (OPENMPI, Launcher::OpenMpi, 1, 2, Some(1), None),
        (SLURM, Launcher::Slurm, 5, 16, Some(1), Some("10.0.0.1:7411")),
        (RINGWAY, Launcher::Ringway, 0, 4, None, Some("10.9.9.9:7000")),
    ];
    for (variables, launcher, rank, size, local_rank, root) in table {
        let found = read(variables).expect("recognised");
        assert_eq!(
            (found.launcher, found.rank, found.size, found.local_rank),
            (launcher, rank, size, local_rank)
        );
        assert_eq!(found.id.root.map(|r| r.to_string()).as_deref(), root, "{launcher}");
    }
}

#[test]
fn the_order_is_ringway_torchrun_openmpi_slurm() {
    let mut all = with(SLURM, OPENMPI);
    assert_eq!(read(&all).expect("read").launcher, Launcher::OpenMpi);
    all = with(&all, TORCHRUN);
    assert_eq!(read(&all).expect("read").launcher, Launcher::Torchrun);
    all = with(&all, RINGWAY);
    assert_eq!(read(&all).expect("read").launcher, Launcher::Ringway);
}

#[test]
fn ranks_on_one_node_need_no_address() {
    let alone = [
        with(TORCHRUN, &[("LOCAL_WORLD_SIZE", "8"), ("MASTER_ADDR", "unresolvable")]),
        with(SLURM, &[("SLURM_STEP_NUM_NODES", "1")]),
        OPENMPI.to_vec(),
        vec![("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")],
    ];
    for variables in alone {
        assert_eq!(read(&variables).expect("read").id.root, None, "{variables:?}");
    }
}

#[test]
fn the_name_follows_what_identifies_the_job_and_nothing_else() {
    let base = read(TORCHRUN).expect("read").id.secret;
    for (variable, value) in [
        ("MASTER_ADDR", "10.0.0.2"),
        ("MASTER_PORT", "29501"),
        ("TORCHELASTIC_RUN_ID", "other"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
    ] {
        let changed = read(&with(TORCHRUN, &[(variable, value)])).expect("read").id.secret;
        assert_ne!(changed, base, "{variable}");
    }
    for (variable, value) in [("RANK", "0"), ("LOCAL_RANK", "0"), ("RINGWAY_PORT", "9000")] {
        let changed = read(&with(TORCHRUN, &[(variable, value)])).expect("read").id.secret;
        assert_eq!(changed, base, "{variable}");
    }
    assert_ne!(read_as(TORCHRUN, 1001).expect("read").id.secret, base);
}

#[test]
fn the_name_is_the_same_in_every_build() {
    let secret = read(TORCHRUN).expect("read").id.secret;
    let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, "a6d35f1c20f9b858e70db029e4b931d4");
}

#[test]
fn the_port_is_ringways_own() {
    let moved = read(&with(TORCHRUN, &[("RINGWAY_PORT", "9000")])).expect("read");
    assert_eq!(moved.id.root.map(|r| r.port()), Some(9000));
    let bad = read(&with(TORCHRUN, &[("RINGWAY_PORT", "99999")]));
    assert!(matches!(bad, Err(EnvironmentError::Bad { variable: "RINGWAY_PORT", .. })));
}

#[test]
fn a_root_for_a_named_job() {
    let named = |root: &str| {
        let id = [("RINGWAY_ID", "my job"), ("RINGWAY_ROOT", root)];
        let mut variables = vec![("RINGWAY_RANK", "1"), ("RINGWAY_WORLD_SIZE", "2")];
        variables.extend(id);
        read(&variables).expect("read").id.root.expect("root").to_string()
    };
    assert_eq!(named("master"), "10.0.0.1:7411");
    assert_eq!(named("master:8000"), "10.0.0.1:8000");
    assert_eq!(named("::1"), "[::1]:7411");
    assert_eq!(named("[::1]:8000"), "[::1]:8000");
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    assert_eq!(read(&[]), Err(EnvironmentError::NotLaunched));
    assert_eq!(read(&[("RANK", "0")]), Err(EnvironmentError::NotLaunched));
    // A batch script is not a step.
    assert_eq!(read(&without(SLURM, "SLURM_STEP_ID")), Err(EnvironmentError::NotLaunched));
    let missing = [
        (without(RINGWAY, "RINGWAY_ID"), "RINGWAY_ID"),
        (without(RINGWAY, "RINGWAY_WORLD_SIZE"), "RINGWAY_WORLD_SIZE"),
        (without(OPENMPI, "PMIX_NAMESPACE"), "PMIX_NAMESPACE"),
        (with(OPENMPI, &[("OMPI_COMM_WORLD_SIZE", "4")]), "MASTER_ADDR"),
        (without(SLURM, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST"),
    ];
    for (variables, name) in missing {
        let found = read(&variables);
        assert!(
            matches!(found, Err(EnvironmentError::Missing { variable, .. }) if variable == name),
            "{name}: {found:?}"
        );
    }
    let bad = [
        (with(TORCHRUN, &[("RANK", "8")]), "RANK"),
        (with(TORCHRUN, &[("RANK", "-1")]), "RANK"),
        (with(RINGWAY, &[("RINGWAY_ID", "abc@host")]), "RINGWAY_ID"),
        (with(SLURM, &[("SLURM_STEP_NODELIST", "node[")]), "SLURM_STEP_NODELIST"),
    ];
    for (variables, name) in bad {
        let found = read(&variables);
        assert!(
            matches!(found, Err(EnvironmentError::Bad { variable, .. }) if variable == name),
            "{name}: {found:?}"
        );
    }
    let lost = read(&with(TORCHRUN, &[("MASTER_ADDR", "nowhere")])).expect_err("unresolvable");
    assert!(lost.to_string().contains("nowhere"), "{lost}");
}

#[test]
fn the_first_host_of_a_node_list() {
    let table = [
        ("node1", Some("node1")),
        ("node[001-004,007],gpu7", Some("node001")),
        ("a-1.example,b", Some("a-1.example")),
        ("rack[2-3]node[10,12]", Some("rack2node10")),
        ("n[5]", Some("n5")),
        ("", None),
        ("node[", None),
        ("node[]", None),
        ("node[x]", None),
        (",b", None),
        ("bad host", None),
    ];
    for (list, host) in table {
        assert_eq!(first_host(list).as_deref(), host, "{list}");
    }
}
