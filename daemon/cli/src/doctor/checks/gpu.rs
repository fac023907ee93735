//! Whether processes can use GPUs here, and whether a network card could reach a GPU's memory.

use crate::doctor::{
    facts::Facts,
    finding::{Finding, Status},
};

/// From here on the kernel's RDMA has dma-buf.
const DMA_BUF: (u32, u32) = (5, 12);

/// What clients with memory of a GPU meet.
pub(super) fn cuda(facts: &Facts) -> Finding {
    let name = "cuda";
    match &facts.tried.cuda {
        Ok(gpus) if gpus.is_empty() => Finding::absent(name, "the CUDA driver shows no GPU to this process"),
        Ok(gpus) => {
            let mut names: Vec<_> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
            names.dedup();
            let mps = if gpus.iter().any(|gpu| gpu.has_mps) {
                "processes share it by MPS"
            } else {
                "without MPS processes that share it take turns, which costs short operations 0.4 ms: \
                 `nvidia-cuda-mps-control -d` starts it"
            };
            Finding::ok(
                name,
                format!("{} ({}) by the CUDA driver; {mps}", counted(gpus.len()), names.join(", ")),
            )
        }
        Err(error) if facts.gpu.cards > 0 => {
            Finding::new(name, Status::Warn, format!("{}, and {error}", counted(facts.gpu.cards)))
                .why("clients cannot have memory of a GPU")
        }
        Err(_) => Finding::absent(name, "no CUDA driver, and no NVIDIA GPU"),
    }
}

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
        "{}, driver {}: {ways} for network cards; Ringway stages memory of GPUs in the host's",
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
