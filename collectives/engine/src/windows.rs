//! Memory through which messages from and to accelerators go, in windows of one length: as many for sends as for receives,
//! so that two nodes which have both in their hands never wait for each other.

use crate::BufferRef;
use crate::workspace::Workspace;

/// Bytes of a window: so many that starting copies and writes is little beside them, and so few that several messages have
/// several of them under way.
pub(crate) const WINDOW: u64 = 256 << 10;
/// The most windows of either kind.
const EACH_MAX: u64 = 32;
/// Of the workspace, at most this part is windows of one kind.
const PART: u64 = 8;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    In,
}

/// A window that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    way: Way,
    number: u32,
}

impl Window {
    pub(crate) fn is(self, way: Way) -> bool {
        self.way == way
    }
}

/// All windows.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    base: u64,
    outgoing: Vec<u32>,
    incoming: Vec<u32>,
    each: usize,
    made: bool,
}

impl Windows {
    /// Takes them out of the workspace, once. `false` when it has too little room.
    pub(crate) fn make(&mut self, workspace: &mut Workspace) -> bool {
        if self.made {
            return true;
        }
        let each = (workspace.length() / PART / WINDOW).clamp(1, EACH_MAX);
        let Some(base) = workspace.take_long(2 * each * WINDOW) else { return false };
        let each = u32::try_from(each).unwrap_or(1);
        self.each = each as usize;
        (self.base, self.made) = (base, true);
        self.outgoing = (0..each).rev().collect();
        self.incoming = (each..2 * each).rev().collect();
        true
    }

    /// Whether there are any: there are once an accelerator's memory is known.
    pub(crate) const fn are_made(&self) -> bool {
        self.made
    }

    /// How many of either kind one communicator may have at a time, so that others find some.
    pub(crate) const fn share(&self) -> usize {
        self.each.div_ceil(2)
    }

    pub(crate) fn take(&mut self, way: Way) -> Option<Window> {
        let free = if way == Way::Out { &mut self.outgoing } else { &mut self.incoming };
        free.pop().map(|number| Window { way, number })
    }

    pub(crate) fn give(&mut self, window: Window) {
        let free = if window.way == Way::Out { &mut self.outgoing } else { &mut self.incoming };
        debug_assert!(!free.contains(&window.number), "given back twice");
        free.push(window.number);
    }

    /// The first bytes of a window.
    pub(crate) fn bytes(&self, window: Window, length: u64, workspace: &Workspace) -> BufferRef {
        workspace.buffer(self.base + u64::from(window.number) * WINDOW, length.min(WINDOW))
    }
}
