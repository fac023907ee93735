//! Which algorithms somebody asks for, as text and as a value.

use core::{fmt, str::FromStr};

use ringway_types::Operation;
use thiserror::Error;

use crate::{Algorithm, Ineligible, algorithm};

/// The word for asking for nothing.
const AUTO: &str = "auto";

/// The algorithms that are asked for: one for everything, one for some operations, or both. Where what is asked for
/// cannot do the operation between so many nodes, an algorithm is chosen as if nothing were asked for.
///
/// As text `auto` asks for nothing, `ring` for that algorithm wherever it can be used, `allreduce=ring` for one operation
/// only; several with commas between them: `direct,allreduce=ring,broadcast=ring`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preference {
    /// For the operations that are not named.
    general: Option<Algorithm>,
    /// For each operation, in the order of [`Operation::ALL`].
    named: [Option<Algorithm>; Operation::ALL.len()],
}

/// Why a text asks for nothing that there is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PreferenceError {
    /// No algorithm has this name.
    #[error("`{given}` is not an algorithm; there are {}", all_algorithms())]
    Algorithm {
        /// What was given.
        given: String,
    },
    /// No collective operation has this name.
    #[error("`{given}` is not a collective operation; there are {}", all_operations())]
    Operation {
        /// What was given.
        given: String,
    },
    /// Something is asked for twice.
    #[error("{what} has two algorithms; name one")]
    Twice {
        /// What it is asked for.
        what: String,
    },
    /// The algorithm does not do the operation, whatever the layout.
    #[error(transparent)]
    NotOffered(#[from] Ineligible),
    /// The text is too long to be one.
    #[error("{length} bytes are more than the {} that a list of algorithms may have", Preference::TEXT_MAX)]
    Long {
        /// Bytes that were given.
        length: usize,
    },
}

impl Preference {
    /// The most bytes of its text.
    pub const TEXT_MAX: usize = 1024;

    /// The algorithm for everything.
    #[must_use]
    pub fn everywhere(algorithm: Algorithm) -> Self {
        Self { general: Some(algorithm), ..Self::default() }
    }

    /// What is asked for this operation.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Option<Algorithm> {
        self.named.get(place(operation)).copied().flatten().or(self.general)
    }

    /// What of it is allowed, and what is not, operation by operation.
    #[must_use]
    pub fn split(self, is_allowed: impl Fn(Algorithm, Operation) -> bool) -> (Self, Self) {
        let (mut kept, mut refused) = (Self::default(), Self::default());
        let slots = kept.named.iter_mut().zip(&mut refused.named);
        for (operation, (keep, refuse)) in Operation::ALL.iter().copied().zip(slots) {
            let asked = self.of(operation).filter(|asked| algorithm::method(*asked, operation).is_some());
            let allowed = asked.filter(|asked| is_allowed(*asked, operation));
            *keep = allowed;
            *refuse = asked.filter(|_| allowed.is_none());
        }
        if refused.is_auto() { (self, refused) } else { (kept, refused) }
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::default()
    }

    /// What is asked for here, and what `under` asks for where nothing is.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        if self.general.is_some() {
            return self;
        }
        let mut both = under;
        for (to, from) in both.named.iter_mut().zip(self.named) {
            *to = from.or(*to);
        }
        both
    }

    fn add(&mut self, part: &str) -> Result<(), PreferenceError> {
        let (slot, what, name) = match part.split_once('=') {
            None => (Some(&mut self.general), "everything", part),
            Some((operation, name)) => {
                let operation = operation.trim();
                let known = Operation::from_name(operation).filter(|known| known.is_collective());
                let unknown = || PreferenceError::Operation { given: short(operation) };
                (self.named.get_mut(place(known.ok_or_else(unknown)?)), operation, name)
            }
        };
        let name = name.trim();
        let found = Algorithm::from_name(name);
        let found = found.ok_or_else(|| PreferenceError::Algorithm { given: short(name) })?;
        if let Some(operation) = Operation::from_name(what)
            && algorithm::method(found, operation).is_none()
        {
            return Err(Ineligible::NotOffered { algorithm: found, operation }.into());
        }
        match slot {
            Some(slot) if slot.is_none() => *slot = Some(found),
            _ => return Err(PreferenceError::Twice { what: what.to_owned() }),
        }
        Ok(())
    }
}

impl FromStr for Preference {
    type Err = PreferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > Self::TEXT_MAX {
            return Err(PreferenceError::Long { length: text.len() });
        }
        let mut preference = Self::default();
        if text.trim() != AUTO {
            text.split(',').try_for_each(|part| preference.add(part.trim()))?;
        }
        Ok(preference)
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_auto() {
            return f.write_str(AUTO);
        }
        let mut comma = "";
        if let Some(general) = self.general {
            f.write_str(general.name())?;
            comma = ",";
        }
        for (operation, algorithm) in Operation::ALL.iter().zip(&self.named) {
            if let Some(algorithm) = algorithm {
                write!(f, "{comma}{}={}", operation.name(), algorithm.name())?;
                comma = ",";
            }
        }
        Ok(())
    }
}

/// An operation's place among all.
fn place(operation: Operation) -> usize {
    Operation::ALL.iter().position(|other| *other == operation).unwrap_or(usize::MAX)
}

/// What is repeated of a word that is wrong.
fn short(given: &str) -> String {
    given.chars().filter(|c| !c.is_control()).take(40).collect()
}

fn all_algorithms() -> String {
    let names = Algorithm::ALL.iter().map(|algorithm| algorithm.name());
    [AUTO].into_iter().chain(names).collect::<Vec<_>>().join(", ")
}

fn all_operations() -> String {
    let collective = Operation::ALL.iter().filter(|operation| operation.is_collective());
    collective.map(|operation| operation.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        for text in ["auto", "ring", "allreduce=ring", "direct,allreduce=ring,broadcast=direct"] {
            let preference: Preference = text.parse().unwrap();
            assert_eq!(preference.to_string(), text);
            assert_eq!(preference.is_auto(), text == "auto");
        }
        let mixed: Preference = " direct , broadcast = ring ".parse().unwrap();
        assert_eq!(mixed.of(Operation::Allreduce), Some(Algorithm::Direct));
        assert_eq!(mixed.of(Operation::Broadcast), Some(Algorithm::Ring));
        let some: Preference = "broadcast=ring".parse().unwrap();
        assert_eq!(some.of(Operation::Allreduce), None);
        assert_eq!(some.of(Operation::Broadcast), Some(Algorithm::Ring));
    }

    #[test]
    fn what_is_not_allowed_is_split_off() {
        let asked: Preference = "ring,broadcast=tree".parse().unwrap();
        let (kept, refused) = asked.split(|_, operation| operation != Operation::Allreduce);
        assert_eq!(refused.to_string(), "allreduce=ring");
        assert_eq!(kept.of(Operation::Allreduce), None);
        assert_eq!(kept.of(Operation::ReduceScatter), Some(Algorithm::Ring));
        assert_eq!(kept.of(Operation::Broadcast), Some(Algorithm::Tree));
        assert_eq!(kept.to_string().parse(), Ok(kept), "it can be said in a message");
        assert_eq!(asked.split(|_, _| true), (asked, Preference::default()));
    }

    #[test]
    fn what_is_said_last_holds() {
        let daemon: Preference = "direct,allreduce=ring".parse().unwrap();
        let over = |text: &str| text.parse::<Preference>().unwrap().over(daemon).to_string();
        assert_eq!(over("auto"), "direct,allreduce=ring");
        assert_eq!(over("ring"), "ring");
        assert_eq!(over("broadcast=ring"), "direct,allreduce=ring,broadcast=ring");
        assert_eq!(over("allreduce=direct"), "direct,allreduce=direct");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_there_is() {
        let error = |text: &str| text.parse::<Preference>().unwrap_err().to_string();
        assert!(error("rings").contains("`rings` is not an algorithm; there are auto, local, direct, ring"));
        assert!(error("").contains("`` is not an algorithm"));
        assert!(error("send=ring").contains("`send` is not a collective operation; there are allreduce, "));
        assert_eq!(error("ring,direct"), "everything has two algorithms; name one");
        assert_eq!(error("allreduce=ring,allreduce=ring"), "allreduce has two algorithms; name one");
        assert_eq!(error("barrier=ring"), "algorithm ring does not do barrier; use direct");
        assert!(error(&"ring,".repeat(1000)).contains("5000 bytes are more than the 1024"));
    }
}
