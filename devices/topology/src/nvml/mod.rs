//! NVIDIA's management library (NVML), which tells about GPUs what the kernel does not show.
//!
//! What it says is outside input like a file's text: `library` takes what its functions give, `said` makes of that what fits
//! the host that sysfs shows. What cannot be checked is that it keeps to C's rules, such as ending texts with a zero: a library
//! that is loaded could do anything, and so it is looked for where the system keeps its libraries only.

mod library;
mod said;

use std::{collections::BTreeMap, path::PathBuf, sync::mpsc, thread, time::Duration};

use self::said::Said;
use crate::{
    IndexSet, PciAddress, Topology, Tree, limits,
    read::{gpus, named},
};

/// NVIDIA's management library: where it is, and how long it may take.
#[derive(Debug, Clone)]
pub struct Nvml {
    /// Its file. A name without a folder is looked for as all libraries are.
    pub library: PathBuf,
    /// How long it may take to tell all; after that its answers are not waited for. A driver that nothing keeps loaded takes
    /// seconds for each GPU, and one whose GPU is lost may never answer.
    pub patience: Duration,
}

impl Default for Nvml {
    fn default() -> Self {
        Self { library: PathBuf::from("libnvidia-ml.so.1"), patience: Duration::from_secs(30) }
    }
}

impl Nvml {
    /// Adds what it says of the host's GPUs, or a note that says why it says nothing.
    pub(crate) fn add_to(&self, host: &mut Topology, tree: &Tree) {
        let nvidia = gpus::of_nvidia(tree);
        let numbers: BTreeMap<PciAddress, u32> = (0..)
            .zip(&host.gpus)
            .map(|(number, gpu)| (gpu.pci.address, number))
            .filter(|(address, _)| nvidia.contains(address))
            .collect();
        if numbers.is_empty() {
            return;
        }
        match self.ask() {
            Ok(said) => {
                let class = |end| Some((end, gpus::class(tree, end)?));
                let classes = said.ends().into_iter().filter_map(class).collect();
                said.add_to(host, &numbers, &classes);
            }
            Err(reason) => {
                let what = format!("from sysfs alone, as NVIDIA's management library fails: {reason}");
                note(host, &numbers.into_values().collect(), &what);
            }
        }
    }

    /// In a thread of its own, which goes on alone if it takes too long.
    fn ask(&self) -> Result<Said, String> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let library = self.library.clone();
        let thread = thread::Builder::new().name("nvml".to_owned());
        thread.spawn(move || sender.send(library::ask(&library))).map_err(|error| error.to_string())?;
        let name = self.library.display();
        match receiver.recv_timeout(self.patience) {
            Ok(said) => said,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("{name} did not answer in {:?}", self.patience))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(format!("reading {name} broke off")),
        }
    }
}

/// Says something about some GPUs, by their places among the host's.
fn note(host: &mut Topology, gpus: &IndexSet, what: &str) {
    let s = if gpus.len() == 1 { "" } else { "s" };
    if host.notes.len() < limits::NOTES {
        host.notes.extend(named(format!("GPU{s} {gpus}: {what}")));
    }
}

#[cfg(test)]
mod tests;
