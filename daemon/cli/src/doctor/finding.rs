//! What a check found.

use serde::Serialize;

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// Nothing to do.
    Ok,
    /// Good to know.
    Note,
    /// A path that this host could have does not work, or is slow.
    Warn,
    /// What every path needs does not work.
    Fail,
    /// There is no such hardware.
    Absent,
}

impl Status {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Absent => "absent",
        }
    }
}

/// One check's outcome; the fields are those of `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// What it costs.
    pub(super) why: Option<String>,
    /// The commands that mend it.
    pub(super) mend: Vec<String>,
}

impl Finding {
    pub(super) fn new(check: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self { check, status, found: found.into(), why: None, mend: Vec::new() }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Status::Ok, found)
    }

    pub(super) fn absent(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Status::Absent, found)
    }

    pub(super) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(super) fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend.push(command.into());
        self
    }
}
