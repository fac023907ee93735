//! A collective is a plan: for every node a generator of steps over chunks, as pure data.
//!
//! Between nodes the daemon is the participant. A `Plan` says in how many chunks an operation is cut, how many of
//! them may be under way at once and how many steps each has on this node; `Plan::step` computes any single step
//! from its position, so nothing is ever listed. The engine runs the steps, `verify` proves them right.
//!
//! How steps are run (the engine and the verifier agree on this):
//! - a chunk may start when the chunk [`Shape::depth`] places before it has finished on this node, so scratch memory
//!   is `depth` slots of [`Shape::scratch`] bytes, and offsets into scratch are relative to the chunk's slot;
//! - within a chunk a step may start when every step in its [`Step::after`] ranges (all of lower index) is done;
//!   steps whose conditions hold run in any order, looking ahead at most [`LOOKAHEAD`] steps past the first
//!   unfinished one;
//! - a `Send` is done when its source may be overwritten, a `Receive` when its bytes are in place;
//! - a message is named by (chunk, source node, destination node, tag); both ends know its length.
#![forbid(unsafe_code)]

mod algorithm;
mod call;
mod cost;
pub mod file;
mod layout;
mod pair;
mod plan;
mod preference;
mod settings;
pub mod simulate;
mod step;
pub mod trace;
pub mod tuner;
pub mod verify;

pub use call::{Blocks, Call, View};
pub use cost::{Cost, Terms, Work};
pub use layout::{Layout, Run};
pub use pair::{Pair, Stage};
pub use plan::{Algorithm, Ineligible, Plan, Source, Tuning};
pub use preference::{Preference, PreferenceError};
pub use settings::{Choice, Origin, PlanSettings, Rule, SettingsError};
pub use step::{
    Action, LOOKAHEAD, LocalRange, OutputSet, Partials, Place, Shape, Sources, Span, Step, Targets,
};

/// Up to so many bytes a message travels with its header, where nobody says otherwise; of a longer one the receiver says first
/// where it goes.
pub const EAGER_BYTES: u32 = 8 << 10;
/// The longest message that an engine may write without asking the receiver where to; see [`Tuning::eager_write_max_bytes`].
pub const EAGER_WRITE_BYTES: u32 = 64 << 10;
