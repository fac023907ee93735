//! Places inside a call at which tests stop or end a rank. Without the feature `steps` there is nothing here.

/// A place inside a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A part of a payload is in the pool, and nobody knows.
    PartPut,
    /// All but the record is written, and nobody knows.
    Written,
    /// The record can be seen.
    Published,
    /// A segment of memory that others cannot reach is copied in, and nobody knows.
    CopiedIn,
    /// Others may work on that segment.
    Offered,
    /// The rank may touch others' memory from now on.
    Entered,
    /// A block is claimed, and nothing of it done.
    Claimed,
    /// The block is done, and nobody knows.
    Worked,
    /// Blocks are reported as done.
    Reported,
    /// The rank touches others' memory no more.
    Left,
    /// A segment is done, and its results are not copied out.
    Ready,
    /// They are copied out.
    CopiedOut,
    /// The rank has its result, and others do not know that it is through.
    Taken,
    /// The call is consumed.
    Consumed,
}

impl Step {
    /// All, in the order of a call.
    #[cfg(feature = "steps")]
    pub const ALL: [Self; 14] = [
        Self::PartPut,
        Self::Written,
        Self::Published,
        Self::CopiedIn,
        Self::Offered,
        Self::Entered,
        Self::Claimed,
        Self::Worked,
        Self::Reported,
        Self::Left,
        Self::Ready,
        Self::CopiedOut,
        Self::Taken,
        Self::Consumed,
    ];
}

#[cfg(feature = "steps")]
static HOOK: std::sync::OnceLock<fn(Step)> = std::sync::OnceLock::new();

/// Has `hook` called at every step of every call in this process, from now on. Whether it is the first one.
#[cfg(feature = "steps")]
pub fn set_hook(hook: fn(Step)) -> bool {
    HOOK.set(hook).is_ok()
}

/// A call is at a step.
#[inline(always)]
pub(crate) fn reach(step: Step) {
    #[cfg(feature = "steps")]
    if let Some(hook) = HOOK.get() {
        hook(step);
    }
    #[cfg(not(feature = "steps"))]
    let _ = step;
}
