//! Blocking calls on ordinary memory. Nobody else can reach it: what is small is copied to the cell, what is large moves
//! through staging memory of this rank's.

use std::sync::Arc;

use ringway_cell::{Call, CallMemory, Exchange, Member, Place, Regions as _, STAGING_BYTES, Signature};

use super::{Calls, LARGE, NEVER, Stopped, memory::Own};
use crate::{Arena, CallError, Error, MemoryError, arena::Registered};

impl Calls {
    /// Makes a call and waits for it; `own` are the slices it names. `false` when it was not made, since the daemon acts
    /// for this rank.
    #[inline]
    pub(crate) fn run(&mut self, call: &Call<'_>, own: Own<'_>) -> Result<bool, Error> {
        if self.is_group_open() {
            return Err(CallError::InsideGroup.into());
        }
        match self.exchange_slices(call, &own) {
            Some(Exchange::Done) => Ok(true),
            Some(Exchange::Pending(sequence)) => self.run_on(sequence, &own).map(|()| true),
            _ if Member::is_large(call, self.ranks) => self.run_staged(call, own),
            _ => self.run_with(call, &own),
        }
    }

    /// Makes a small call at once, if it is one.
    #[inline]
    fn exchange_slices(&mut self, call: &Call<'_>, own: &Own<'_>) -> Option<Exchange> {
        let Call { operation, datatype, reduction, root, count, .. } = *call;
        let signature = Signature { operation, datatype, reduction, root, count };
        let known = self.recall(&signature).filter(|known| known.prepared.is_small())?;
        let (reads, writes) = known.prepared.bytes();
        let window = |place: Option<Place>, bytes| own.window(self.part.rank, place?, bytes);
        self.exchange(&CallMemory {
            input: window(call.input.filter(|_| reads > 0), reads),
            output: window(call.output.filter(|_| writes > 0), writes),
            places: [call.input, call.output],
            scale: call.scale.unwrap_or(0),
        })
    }

    fn run_staged(&mut self, call: &Call<'_>, own: Own<'_>) -> Result<bool, Error> {
        self.unlooked = self.unlooked.wrapping_add(LARGE);
        let region = self.staging()?;
        let staging = Some(Place { region: region.region, offset: 0 });
        self.run_with(&Call { staging, ..*call }, &own.staged_through(&region))
    }

    #[inline]
    fn run_with(&mut self, call: &Call<'_>, own: &Own<'_>) -> Result<bool, Error> {
        let sequence = match self.begin(call, false, own) {
            Some(sequence) => sequence,
            None if self.is_away() => return Ok(false),
            None => self.begin_later(call, false, own)?,
        };
        if sequence != NEVER && self.spin(sequence, own) {
            return Ok(true);
        }
        self.run_on(sequence, own).map(|()| true)
    }

    /// The rest of a call that takes longer.
    #[cold]
    fn run_on(&mut self, sequence: u64, own: &Own<'_>) -> Result<(), Error> {
        if sequence == NEVER {
            return Err(self.explain().into());
        }
        self.keep(sequence, false, [None, None]);
        match self.complete(sequence, own, None) {
            Ok(()) => Ok(()),
            // Staging memory is used for nothing else, so that it matters to nobody who still writes there.
            Err(Stopped::Over { error, .. }) => Err(error.into()),
            Err(Stopped::Expired | Stopped::Handed(_)) => Err(CallError::Full.into()),
        }
    }

    fn staging(&mut self) -> Result<Arc<Registered>, MemoryError> {
        if let Some(staging) = &self.staging {
            return Ok(Arc::clone(staging));
        }
        let bytes = usize::try_from(STAGING_BYTES).map_err(|_| MemoryError::TooLarge)?;
        let staging = Arena::new(self.part.client.clone(), bytes)?.into_region();
        Ok(Arc::clone(self.staging.insert(staging)))
    }
}
