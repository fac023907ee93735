//! What this process may do, by `/proc/self`.

use ringway_topology::Tree;

/// A capability, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::doctor) enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
    IpcLock = 14,
    SysAdmin = 21,
    Bpf = 39,
}

impl Capability {
    pub(in crate::doctor) const ALL: [Self; 5] =
        [Self::NetAdmin, Self::NetRaw, Self::IpcLock, Self::SysAdmin, Self::Bpf];

    pub(in crate::doctor) const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// Whom this process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::doctor) struct User {
    pub(in crate::doctor) uid: u32,
    /// One bit each.
    pub(in crate::doctor) capabilities: u64,
    /// In a user namespace capabilities count for what belongs to that only.
    pub(in crate::doctor) in_user_namespace: bool,
}

impl User {
    pub(super) fn read(tree: &Tree) -> Self {
        let uid = status(tree, "Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
        let capabilities = status(tree, "CapEff").and_then(|bits| u64::from_str_radix(&bits, 16).ok());
        let map = tree.words("proc/self/uid_map");
        Self {
            uid: uid.unwrap_or(u32::MAX),
            capabilities: capabilities.unwrap_or(0),
            in_user_namespace: !map.is_empty() && map != ["0", "0", "4294967295"],
        }
    }

    /// Whether the process has it, and in the namespace where it counts for the whole host.
    pub(in crate::doctor) fn can(&self, capability: Capability) -> bool {
        self.has(capability) && !self.in_user_namespace
    }

    pub(in crate::doctor) fn has(&self, capability: Capability) -> bool {
        self.capabilities >> (capability as u32) & 1 == 1
    }
}

/// A limit in bytes; `None` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::doctor) struct Limit {
    pub(in crate::doctor) bytes: Option<u64>,
    /// How far the process may raise it.
    pub(in crate::doctor) most: Option<u64>,
}

impl Limit {
    pub(super) fn locked_memory(tree: &Tree) -> Self {
        let text = tree.text("proc/self/limits").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        let mut words = line.unwrap_or_default().split_whitespace().map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        Self { bytes: next(), most: next() }
    }
}

/// A line of `/proc/self/status`.
pub(super) fn status(tree: &Tree, key: &str) -> Option<String> {
    let text = tree.text("proc/self/status")?;
    let value = |line: &str| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(value)
}

/// How many are in a list like `0-3,8`.
pub(super) fn count(list: &str) -> usize {
    let of_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        Some(last.checked_sub(first)?.saturating_add(1))
    };
    list.split(',').filter_map(of_range).fold(0, usize::saturating_add)
}

/// By the kernel's own limit, and by what Debian and Ubuntu add to it.
pub(super) fn user_namespaces(tree: &Tree) -> bool {
    let of = |name| tree.number(&format!("proc/sys/{name}"));
    of("user/max_user_namespaces").is_some_and(|most| most > 0)
        && of("kernel/unprivileged_userns_clone") != Some(0)
        && of("kernel/apparmor_restrict_unprivileged_userns") != Some(1)
}
