//! Whether a network card could reach a GPU's memory on this host. Clients' memory is the host's as yet.

use crate::doctor::{
    facts::Facts,
    finding::{Finding, Status},
};

/// From here on the kernel's RDMA has dma-buf.
const DMA_BUF: (u32, u32) = (5, 12);

pub(super) fn gpu_direct(facts: &Facts) -> Finding {
    let (name, gpu) = ("gpu_direct", &facts.gpu);
    let Some(driver) = &gpu.driver else {
        return match gpu.cards {
            0 => Finding::absent(name, "no NVIDIA GPU"),
            cards => {
                Finding::new(name, Status::Warn, format!("{}, whose driver is not loaded", counted(cards)))
                    .why("nothing can use them")
                    .mend(facts.as_root("modprobe nvidia"))
            }
        };
    };
    let is_open = driver.contains("Open Kernel Module");
    let dma_buf = is_open && facts.version() >= DMA_BUF;
    let peermem = facts.has_module("nvidia_peermem");
    let ways = match (dma_buf, peermem) {
        (true, true) => "dma-buf and nvidia_peermem are there",
        (true, false) => "dma-buf is there",
        (false, true) => "nvidia_peermem is there",
        (false, false) => "neither dma-buf nor nvidia_peermem is there",
    };
    let found = format!(
        "{}, driver {}: {ways} for network cards; Ringway itself moves memory of the host only",
        counted(gpu.cards),
        version(driver)
    );
    if dma_buf || peermem || facts.ports().is_empty() {
        return Finding::ok(name, found);
    }
    let kind = if is_open {
        "this kernel is too old for dma-buf"
    } else {
        "the driver is not the open one, which has dma-buf"
    };
    Finding::new(name, Status::Warn, found)
        .why(format!("network cards cannot reach GPU memory: {kind}"))
        .mend(facts.as_root("modprobe nvidia_peermem"))
}

fn counted(cards: usize) -> String {
    format!("{cards} NVIDIA GPU{}", if cards == 1 { "" } else { "s" })
}

/// `570.86.15 (open)`.
fn version(driver: &str) -> String {
    let is_number = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = driver.split(' ').find(is_number).unwrap_or("unknown");
    let kind = if driver.contains("Open Kernel Module") { "open" } else { "proprietary" };
    format!("{number} ({kind})")
}
