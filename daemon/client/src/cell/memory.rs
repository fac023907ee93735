//! What this rank can reach: its own memory, and what it has mapped of the others'.

use std::{
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_abi::control::{Reply, Request};
use ringway_cell::{OWN_INPUT, OWN_OUTPUT, Place, Regions};
use ringway_mem::{Mapping, Window, admit};

use crate::{Client, arena::Registered, control::Answer};

/// In place of a handle where there is no memory.
const NOTHING: u64 = u64::MAX;

/// Regions of at most so many bytes get all their page table entries at once, which takes some milliseconds; of larger
/// ones, which may never be used as a whole, as they are used.
const POPULATED_BYTES: u64 = 16 << 20;

/// A region without which a call cannot go on is asked for again this long after it was refused.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// The memory that one call of this rank names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own<'a>([(u64, Window<'a>); 3]);

impl<'a> Own<'a> {
    /// Registered memory.
    #[inline]
    pub(crate) fn registered(memory: [Option<&'a Registered>; 2]) -> Self {
        let [input, output] = memory.map(|region| region.map_or(Self::NONE, Self::whole));
        Self([input, output, Self::NONE])
    }

    /// The caller's slices, which nobody else can reach.
    #[inline]
    pub(crate) const fn slices(input: Window<'a>, output: Window<'a>) -> Self {
        Self([(OWN_INPUT, input), (OWN_OUTPUT, output), Self::NONE])
    }

    /// As before, with memory through which slices are moved.
    pub(crate) fn staged_through(mut self, region: &'a Registered) -> Self {
        self.0[2] = Self::whole(region);
        self
    }

    const NONE: (u64, Window<'a>) = (NOTHING, Window::of(&[]));

    #[inline]
    fn whole(region: &'a Registered) -> (u64, Window<'a>) {
        region.window().map_or(Self::NONE, |window| (region.region, window))
    }
}

/// Whatever rank is asked for: this one's.
impl Regions for Own<'_> {
    #[inline]
    fn window(&self, _: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let (offset, length) = (usize::try_from(place.offset).ok()?, usize::try_from(length).ok()?);
        self.0.iter().find(|(region, _)| *region == place.region)?.1.sub(offset, length)
    }
}

/// What this rank can reach, for one of its calls.
#[derive(Debug)]
pub(crate) struct Reach<'a> {
    pub(crate) rank: u32,
    pub(crate) own: &'a Own<'a>,
    pub(crate) peers: &'a Peers,
}

impl Regions for Reach<'_> {
    #[inline]
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        if rank == self.rank {
            return self.own.window(rank, place, length);
        }
        self.peers.window(rank, place, length)
    }
}

/// Regions of other ranks that are mapped here.
#[derive(Debug)]
pub(crate) struct Peers {
    /// For each rank, in the order of handles.
    mapped: Vec<Vec<(u64, Mapping)>>,
    /// The region that could not be had when it was last asked for.
    refused: Option<Refused>,
}

/// A region that could not be had.
#[derive(Debug, Clone, Copy)]
struct Refused {
    rank: u32,
    region: u64,
    at: Instant,
}

/// Of a rank's regions those that are mapped.
impl Regions for Peers {
    #[inline]
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let regions = self.mapped.get(rank as usize)?;
        let at = regions.binary_search_by_key(&place.region, |(handle, _)| *handle).ok()?;
        let (_, mapping) = regions.get(at)?;
        mapping.window(place.offset, length)
    }
}

impl Peers {
    pub(crate) fn new(ranks: u32) -> Self {
        Self { mapped: (0..ranks).map(|_| Vec::new()).collect(), refused: None }
    }

    /// Maps a region of another rank; whether it is there now. One that was refused is asked for again only after
    /// [`Peers::ask_again`]: whoever can reach it does the work.
    pub(crate) fn map(&mut self, client: &Client, communicator: u32, rank: u32, region: u64) -> bool {
        if self.refused.is_some_and(|refused| (refused.rank, refused.region) == (rank, region)) {
            return false;
        }
        let mapping = fetch(client, Request::MapRegion { communicator, rank, region });
        let (Some(mapping), Some(regions)) = (mapping, self.mapped.get_mut(rank as usize)) else {
            self.refused = Some(Refused { rank, region, at: Instant::now() });
            return false;
        };
        match regions.binary_search_by_key(&region, |(handle, _)| *handle) {
            Ok(_) => {}
            Err(at) => regions.insert(at, (region, mapping)),
        }
        true
    }

    pub(crate) const fn ask_again(&mut self) {
        self.refused = None;
    }

    /// As [`Peers::ask_again`], now and then only: nobody else can do the work for which the region is needed.
    pub(crate) fn ask_again_later(&mut self) {
        if self.refused.is_some_and(|refused| refused.at.elapsed() >= ASK_AGAIN_AFTER) {
            self.refused = None;
        }
    }

    /// Unmaps what is mapped of a rank that has released regions: those it still has are mapped again when they are
    /// used.
    pub(crate) fn forget(&mut self, rank: u32) {
        if let Some(regions) = self.mapped.get_mut(rank as usize) {
            regions.clear();
        }
        self.refused = None;
    }

    /// Unmaps everything: some rank has released a region.
    pub(crate) fn forget_all(&mut self) {
        self.mapped.iter_mut().for_each(Vec::clear);
        self.refused = None;
    }
}

fn fetch(client: &Client, request: Request) -> Option<Mapping> {
    let Answer { reply, descriptors } = client.request(request).ok()?;
    let Reply::Region { region: _, length } = reply else { return None };
    let descriptor = descriptors.into_iter().next()?;
    let mapping = admit::map_client_written(descriptor.as_fd(), usize::try_from(length).ok()?).ok()?;
    if length <= POPULATED_BYTES {
        // Page faults in the middle of work cost more than all of them at once; without, it works as well.
        let _ = mapping.populate();
    }
    Some(mapping)
}

/// What a call under way keeps of the memory it names.
pub(crate) type Kept = [Option<Arc<Registered>>; 2];

/// As the call sees it.
#[inline]
pub(crate) fn own_of(kept: &Kept) -> Own<'_> {
    Own::registered([kept[0].as_deref(), kept[1].as_deref()])
}
