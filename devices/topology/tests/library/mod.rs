//! A management library that says what a test wants, compiled for it and gone with it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// One GPU as C has it: `struct gpu`.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) bus: u32,
    pub(crate) name: &'static str,
    pub(crate) uuid: String,
    pub(crate) memory: u64,
    /// How many links there are, and a bit for each that is in use.
    pub(crate) links: (u32, u32),
    /// Domain, bus and device where they go.
    pub(crate) ends: Vec<[u32; 3]>,
    /// Bits by index of those whose memory it reads, whose it writes, and that it reaches over NVLink.
    pub(crate) peers: [u32; 3],
}

impl Card {
    fn in_c(&self) -> String {
        let place = |[domain, bus, device]: [u32; 3]| format!("{{{domain}u, {bus}u, {device}u}}");
        let ends: Vec<String> = self.ends.iter().map(|end| place(*end)).collect();
        let ends = if ends.is_empty() { "{0}".to_owned() } else { ends.join(", ") };
        let (links, active) = self.links;
        let [reads, writes, nvlink] = self.peers;
        format!(
            "{{{}, \"{}\", \"{}\", {}ull, {links}u, {active}u, {}u, {{{ends}}}, {{{reads}u, {writes}u, {nvlink}u}}}},",
            place([0, self.bus, 0]),
            self.name,
            self.uuid,
            self.memory,
            self.ends.len()
        )
    }
}

/// What is unusual about a library.
#[derive(Debug, Default)]
pub(crate) struct Odd<'a> {
    /// Functions that answer with a code, for all GPUs (-1) or for one of them; -1 never answers.
    pub(crate) failing: &'a [(&'a str, i32, i32)],
    /// Functions that it has not.
    pub(crate) absent: &'a [&'a str],
    /// How many GPUs it says there are.
    pub(crate) count: Option<u32>,
}

/// A file.
#[derive(Debug)]
pub(crate) struct Library(PathBuf);

impl Drop for Library {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Library {
    pub(crate) fn new(cards: &[Card], odd: &Odd<'_>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringway-nvml-{}-{number}.so", std::process::id());
        let library = Self(std::env::temp_dir().join(name));
        let gpus: String = cards.iter().map(Card::in_c).collect();
        let failing = odd.failing.iter().map(|(name, gpu, code)| format!("{{\"{name}\", {gpu}, {code}}}, "));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library.0);
        cc.arg(format!("-DGPUS={gpus}")).arg(format!("-DFAILING={}", failing.collect::<String>()));
        cc.args(odd.absent.iter().map(|name| format!("-D{name}=has_another_name_{name}")));
        cc.args(odd.count.map(|count| format!("-DCOUNT={count}u")));
        cc.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/library.c"));
        let output = cc.output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}
