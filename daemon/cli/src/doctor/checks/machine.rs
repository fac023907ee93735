//! Processors and clocks.

use crate::doctor::{
    facts::Facts,
    finding::{Finding, Status},
};

/// Clocks that a process reads without a system call.
const FAST_CLOCKS: [&str; 5] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen"];
/// Frequency drivers whose `powersave` follows the load.
const FOLLOW_LOAD: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];

pub(super) fn cpus(facts: &Facts) -> Finding {
    let (name, cpus) = ("cpus", &facts.cpus);
    let count = match cpus.allowed == cpus.online {
        true => format!("{} CPUs", cpus.allowed),
        false => format!("{} of {} CPUs may be used", cpus.allowed, cpus.online),
    };
    let governor = cpus.governor.as_deref().map_or_else(
        || "no frequency governor".to_owned(),
        |governor| format!("governor {governor} ({})", cpus.driver.as_deref().unwrap_or("unknown driver")),
    );
    let found = format!("{count}, {governor}");
    let follows = cpus.driver.as_deref().is_some_and(|driver| FOLLOW_LOAD.contains(&driver));
    let status = match cpus.governor.as_deref() {
        _ if cpus.allowed < 2 => {
            let why = "the daemon and the ranks take turns on one CPU: every message waits for the scheduler";
            return Finding::new(name, Status::Warn, found).why(why);
        }
        None | Some("performance") => return Finding::ok(name, found),
        Some("powersave") if !follows => Status::Warn,
        Some(_) => Status::Note,
    };
    let all = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
    Finding::new(name, status, found)
        .why("after a pause messages begin at a low frequency, and measurements differ from run to run")
        .mend(facts.as_root(&format!("sh -c 'echo performance | tee {all}'")))
}

pub(super) fn clock(facts: &Facts) -> Finding {
    let name = "clock";
    let Some(clock) = facts.clock.as_deref() else {
        return Finding::new(name, Status::Note, "the kernel does not say which clock it reads");
    };
    if FAST_CLOCKS.contains(&clock) {
        return Finding::ok(name, clock);
    }
    let finding = Finding::new(name, Status::Warn, clock)
        .why("each look at the clock is a system call and a device access; whoever polls looks often");
    let better = FAST_CLOCKS.iter().find(|fast| facts.clocks.iter().any(|clock| clock == *fast));
    match better {
        Some(fast) => finding
            .mend(facts.write(fast, "/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        None if facts.is_distribution(&["debian", "ubuntu"]) => finding.mend(facts.as_root(
            "sh -c 'echo GRUB_CMDLINE_LINUX=tsc=reliable > /etc/default/grub.d/tsc.cfg && update-grub'   # and boot again",
        )),
        None => {
            finding.mend(facts.as_root("grubby --update-kernel=ALL --args=tsc=reliable   # and boot again"))
        }
    }
}
