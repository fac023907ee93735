//! Selective acknowledgement and a congestion window, between two ends that have agreed on both. It replaces how what
//! is lost is found and what goes out when; requests, responses and their order are those of the plain machine.
//!
//! - The receiving end keeps packets that are ahead of a missing one ([`Reorder`]) and gives them to the responder in
//!   order. What it has it says in a [`Report`], which stands in the place of an acknowledgement.
//! - The sending end knows of every PSN that is outstanding what became of it ([`Scoreboard`]). A packet is lost when
//!   others that went out sufficiently later have arrived; only that packet goes out again. A packet that nothing
//!   follows is found missing by a probe, sent after about two round trips without news.
//! - READs are asked for in pieces that fit the window. Their responses are taken in any order, and of what is missing
//!   only that is asked again.
//! - A [`Window`] bounds what is outstanding, by the delay and the marks that packets met.

mod congestion;
mod reorder;
mod report;
mod scoreboard;
mod sender;
mod state;

pub(crate) use reorder::Reorder;
pub(crate) use report::Report;
pub(crate) use state::Selective;

use congestion::Window;
use scoreboard::{Scoreboard, SlotState};

/// The most packets that may be outstanding: what a report can speak of.
pub const WINDOW_MAX: u32 = report::WORDS as u32 * 64;
