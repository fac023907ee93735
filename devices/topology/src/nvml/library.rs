//! What the library's functions give, through the crate `nvml-wrapper`.
//!
//! Its `NvLink::remote_device_type` (0.13) is not used, as it gives `Unknown` whatever the library says: where links go is told
//! by the addresses of their other ends, as it is in NCCL (`graph/xml.cc`).

use std::{collections::BTreeSet, mem::ManuallyDrop, path::Path};

use nvml_wrapper::{
    Device, NvLink, Nvml,
    enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus},
    error::NvmlError,
    struct_wrappers::device::PciInfo,
};

use super::said::{Peers, Said, SaidGpu};
use crate::{PciAddress, limits};

/// More links than any GPU has. 18 are the most today (`NVML_NVLINK_MAX_LINKS` of nvml.h), and the library says where its own
/// end is.
const LINKS_MAX: u32 = 64;

/// Asks everything; an error says in a line why there is nothing.
pub(super) fn ask(library: &Path) -> Result<Said, String> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().map_err(reason)?;
    let nvml = ManuallyDrop::new(nvml);
    let said = said(&nvml);
    // It panics where it has nothing to call; such a library stays as it is.
    if nvml.lib().nvmlShutdown.is_ok() {
        drop(ManuallyDrop::into_inner(nvml));
    }
    said
}

fn reason(error: NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn said(nvml: &Nvml) -> Result<Said, String> {
    let count = nvml.device_count().map_err(reason)?;
    let count = count.min(u32::try_from(limits::GPUS).unwrap_or(u32::MAX));
    let place = |index| {
        let device = nvml.device_by_index(index)?;
        let address = device.pci_info().map(|pci| address(&pci))?;
        Ok(address.map(|address| (address, device)))
    };
    let mut failure = None;
    let mut devices: Vec<(PciAddress, Device<'_>)> = Vec::new();
    for index in 0..count {
        match place(index) {
            Ok(one) => devices.extend(one),
            Err(error) => failure = failure.or(Some(reason(error))),
        }
    }
    let gpus = devices.iter().map(|(address, device)| gpu(*address, device, &devices)).collect();
    Ok(Said { gpus, failure })
}

/// `None` of numbers that are none of a PCI address.
fn address(pci: &PciInfo) -> Option<PciAddress> {
    Some(PciAddress {
        domain: pci.domain,
        bus: u8::try_from(pci.bus).ok()?,
        device: u8::try_from(pci.device).ok().filter(|device| *device < 32)?,
        // It has no function of its own in what the library gives: `NVML_DEVICE_PCI_BUS_ID_FMT` ends with `.0`.
        function: 0,
    })
}

fn gpu(address: PciAddress, device: &Device<'_>, all: &[(PciAddress, Device<'_>)]) -> SaidGpu {
    SaidGpu {
        address,
        name: device.name().ok(),
        uuid: device.uuid().ok(),
        memory_bytes: device.memory_info().ok().map(|memory| memory.total),
        links: links(device).map_err(reason),
        peers: peers(address, device, all).ok(),
    }
}

/// Of each link that is in use its other end's address, as far as that is one.
fn links(device: &Device<'_>) -> Result<Vec<Option<PciAddress>>, NvmlError> {
    let mut ends = Vec::new();
    for link in 0..LINKS_MAX {
        let link: NvLink<'_, '_> = device.link_wrapper_for(link);
        match link.is_active() {
            Ok(true) => ends.push(link.remote_pci_info().ok().and_then(|pci| address(&pci))),
            // GPUs may be without some of their links, or without any.
            Ok(false) | Err(NvmlError::NotSupported) => {}
            Err(NvmlError::InvalidArg) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(ends)
}

fn peers(own: PciAddress, device: &Device<'_>, all: &[(PciAddress, Device<'_>)]) -> Result<Peers, NvmlError> {
    let mut peers = Peers { memory: BTreeSet::new(), nvlink: BTreeSet::new() };
    for (address, other) in all.iter().filter(|(address, _)| *address != own) {
        let can = |what| device.p2p_status(other, what).map(|status| status == P2pStatus::Ok);
        if can(P2pCapabilitiesIndex::Read)? && can(P2pCapabilitiesIndex::Write)? {
            peers.memory.insert(*address);
        }
        if can(P2pCapabilitiesIndex::NvLink)? {
            peers.nvlink.insert(*address);
        }
    }
    Ok(peers)
}
