//! The kernel, its limits and privileges, memory, processors and clocks.

use super::*;

#[test]
fn locked_memory_is_needed_by_whoever_lacks_the_capability() {
    let host = Host::new();
    let limit = "Max locked memory         65536                65536                bytes     \n";
    host.write("proc/self/limits", limit);
    expect(&host.facts(), "memlock", Status::Ok, &["64 KiB", "CAP_IPC_LOCK"], "");
    host.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n");
    expect(
        &host.facts(),
        "memlock",
        Status::Warn,
        &["64 KiB", "RDMA"],
        "sudo prlimit --pid $$ --memlock=unlimited",
    );
    host.write("proc/self/limits", &limit.replacen("65536     ", "1073741824", 1));
    expect(&host.facts(), "memlock", Status::Note, &["1 GiB"], "limits.d");
    host.remove("sys/class/infiniband");
    host.write("proc/self/limits", limit);
    expect(&host.facts(), "memlock", Status::Note, &["io_uring"], "limits.d");
    let tried = host.tried(|tried| tried.io_uring = Err(TcpError::Memory));
    expect(&tried, "memlock", Status::Warn, &["io_uring"], "limits.d");
    expect(&tried, "io_uring", Status::Warn, &["tcp-epoll"], "prlimit");
    // Root without the capability is in a container.
    host.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000000000\n");
    expect(&host.facts(), "memlock", Status::Note, &[], "--ulimit memlock=-1:-1");
}

#[test]
fn capabilities_of_a_user_namespace_are_less() {
    let host = Host::new();
    host.write("proc/self/uid_map", "0 1000 1\n");
    expect(&host.facts(), "privileges", Status::Note, &["root", "user namespace"], "");
    expect(&host.facts(), "af_xdp", Status::Note, &["CAP_NET_RAW"], "docker run --cap-add NET_RAW");
    host.write("proc/sys/kernel/unprivileged_userns_clone", "0\n");
    expect(&host.facts(), "privileges", Status::Note, &["forbidden"], "");
}

#[test]
fn the_kernels_own_limits_are_told() {
    let host = Host::new();
    host.write("proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
    expect(&host.facts(), "kernel", Status::Warn, &["5.15.0", "6.1"], "");
    host.write(
        "sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n",
    );
    let setting = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
    expect(&host.facts(), "huge_pages", Status::Warn, &["shmem never"], setting);
    host.write("proc/sys/kernel/osrelease", "6.1.0\n");
    expect(&host.facts(), "huge_pages", Status::Ok, &["collapsed"], "");
    host.write(
        "sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise never [deny] force\n",
    );
    expect(&host.facts(), "huge_pages", Status::Warn, &["shmem deny"], setting);
    host.remove("sys/kernel/mm");
    expect(&host.facts(), "huge_pages", Status::Note, &["no transparent huge pages"], "");

    let forbidden = || host.tried(|tried| tried.io_uring = Err(TcpError::Forbidden));
    expect(&forbidden(), "io_uring", Status::Warn, &["tcp-epoll"], "seccomp");
    host.write("proc/sys/kernel/io_uring_disabled", "2\n");
    expect(&forbidden(), "io_uring", Status::Warn, &["tcp-epoll"], "sysctl -w kernel.io_uring_disabled=0");
}

#[test]
fn processors_and_clocks_are_set_for_speed() {
    let host = Host::new();
    let governor = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    host.write(governor, "powersave\n");
    expect(&host.facts(), "cpus", Status::Note, &["powersave (intel_pstate)"], "echo performance");
    host.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    expect(&host.facts(), "cpus", Status::Warn, &["powersave"], "scaling_governor");
    host.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCpus_allowed_list:\t3\n");
    expect(&host.facts(), "cpus", Status::Warn, &["1 of 8 CPUs", "take turns"], "");

    let clocks = "sys/devices/system/clocksource/clocksource0";
    host.write(&format!("{clocks}/current_clocksource"), "hpet\n");
    expect(&host.facts(), "clock", Status::Warn, &["hpet"], "echo tsc > /sys/devices/system/clocksource");
    host.write(&format!("{clocks}/available_clocksource"), "hpet acpi_pm\n");
    expect(&host.facts(), "clock", Status::Warn, &["hpet"], "update-grub");
}
