//! Collectives of one communicator: who has called what ([`queue`]), and the plan that runs ([`run`]).

pub(crate) mod exchange;
mod handing;
pub(crate) mod local;
pub(crate) mod queue;
pub(crate) mod run;
mod staging;
