//! A plan as JSON.

use core::fmt;
use core::fmt::Write as _;
use core::marker::PhantomData;
use core::ops::Range;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeTuple as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::listed::{Entry, Into, Listed, Location, Outputs, What};
use super::{FILE_BYTES_MAX, FileError};

/// The version of the format.
pub(super) const VERSION: u32 = 1;
/// What a chunk has when a file does not say.
const CHUNK_BYTES: u64 = 512 << 10;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) ringway_plan: u32,
    pub(super) name: String,
    pub(super) operation: String,
    pub(super) nodes: u32,
    pub(super) blocks: u32,
    #[serde(default)]
    pub(super) scratch: u32,
    #[serde(default = "chunk_bytes")]
    pub(super) chunk_bytes: u64,
    pub(super) steps: Vec<Vec<Line>>,
}

const fn chunk_bytes() -> u64 {
    CHUNK_BYTES
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    #[serde(deserialize_with = "object")]
    Send(Send),
    #[serde(deserialize_with = "object")]
    Receive(Receive),
    #[serde(deserialize_with = "object")]
    Reduce(Reduce),
    #[serde(deserialize_with = "object")]
    Copy(Copy),
    #[serde(deserialize_with = "object")]
    Nothing(Nothing),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    pub(super) peer: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) tag: u32,
    pub(super) block: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) count: u32,
    pub(super) from: Spot,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Wait>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    pub(super) peer: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) tag: u32,
    pub(super) block: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) count: u32,
    pub(super) into: Spot,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Wait>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reduce {
    pub(super) block: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_object")]
    pub(super) partials: Option<Column>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) inputs: bool,
    pub(super) into: Vec<Spot>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) finish: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Wait>,
}

/// Partial results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    pub(super) scratch: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) count: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) stride: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copy {
    pub(super) block: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) count: u32,
    pub(super) from: Spot,
    pub(super) into: Vec<Spot>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Wait>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Wait>,
}

/// A place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Spot {
    Input,
    Output,
    Others,
    Scratch(u32),
}

/// Steps that are waited for: the first and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait(pub(super) u32, pub(super) u32);

/// Reads the fields of an object by their names: a list of their values would be taken as well, and say nothing to a reader.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(Object { expected: "an object with named fields", read: PhantomData })
}

fn some_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    object(deserializer).map(Some)
}

struct Object<T> {
    expected: &'static str,
    read: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for references")]
const fn is_one(number: &u32) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for references")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for references")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == self.1 {
            return serializer.serialize_u32(self.0);
        }
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&self.0)?;
        pair.serialize_element(&self.1)?;
        pair.end()
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WaitVisitor)
    }
}

struct WaitVisitor;

impl<'de> Visitor<'de> for WaitVisitor {
    type Value = Wait;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a step's number, or `[first, last]`")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Wait, E> {
        let number = u32::try_from(number).map_err(|_| E::custom("a step's number is too large"))?;
        Ok(Wait(number, number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Wait, A::Error> {
        let first = list.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let last = list.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
        match list.next_element::<serde::de::IgnoredAny>()? {
            None => Ok(Wait(first, last)),
            Some(_) => Err(A::Error::invalid_length(3, &self)),
        }
    }
}

impl Document {
    /// Reads what has the form of a plan.
    pub(super) fn read(text: &str) -> Result<Self, FileError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(FileError::TooLong { bytes: text.len() });
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let expected = "an object with ringway_plan, name, operation, nodes, blocks and steps";
        let document = reader.deserialize_map(Object { expected, read: PhantomData });
        document.and_then(|document| reader.end().map(|()| document)).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let text = error.to_string();
            // The place stands in front of our message already.
            let place = format!(" at line {line} column {column}");
            FileError::Syntax { line, column, message: text.strip_suffix(&place).unwrap_or(&text).to_owned() }
        })
    }
}

impl Listed {
    /// The plan as a file: a step on each line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = String::from("{\n");
        // Writing to a string does not fail, nor does making JSON of numbers and names.
        let _ = write!(
            text,
            "  \"ringway_plan\": {VERSION},\n  \"name\": {},\n  \"operation\": \"{}\",\n  \"nodes\": {},\n  \
             \"blocks\": {},\n  \"scratch\": {},\n  \"chunk_bytes\": {},\n  \"steps\": [",
            serde_json::to_string(&self.name).unwrap_or_default(),
            self.operation,
            self.nodes(),
            self.blocks,
            self.scratch,
            self.chunk_bytes,
        );
        for (node, steps) in self.steps.iter().enumerate() {
            text.push_str(if node == 0 { "\n    [" } else { ",\n    [" });
            for (at, entry) in steps.iter().enumerate() {
                let line = serde_json::to_string(&Line::from(entry)).unwrap_or_default();
                let _ = write!(text, "{}\n      {line}", if at == 0 { "" } else { "," });
            }
            text.push_str("\n    ]");
        }
        text.push_str("\n  ]\n}\n");
        text
    }
}

impl From<&Entry> for Line {
    fn from(entry: &Entry) -> Self {
        let (block, count) = (entry.block, entry.count);
        let wait = |range: &Range<u32>| Wait(range.start, range.end - 1);
        let after = entry.after.iter().filter(|range| !range.is_empty()).map(wait).collect();
        match entry.what {
            What::Nothing => Self::Nothing(Nothing { after }),
            What::Send { peer, tag, from } => {
                Self::Send(Send { peer, tag, block, count, from: from.into(), after })
            }
            What::Receive { peer, tag, into } => {
                Self::Receive(Receive { peer, tag, block, count, into: into.into(), after })
            }
            What::Reduce { scratch, stride, partials, inputs, into, finish } => {
                let column = Column { scratch, count: partials, stride };
                let partials = (partials > 0).then_some(column);
                Self::Reduce(Reduce { block, count, partials, inputs, into: spots(into), finish, after })
            }
            What::Copy { from, into } => {
                Self::Copy(Copy { block, count, from: from.into(), into: spots(into), after })
            }
        }
    }
}

impl From<Location> for Spot {
    fn from(location: Location) -> Self {
        match location {
            Location::Input => Self::Input,
            Location::Output => Self::Output,
            Location::Scratch(at) => Self::Scratch(at),
        }
    }
}

fn spots(into: Into) -> Vec<Spot> {
    let outputs = match into.outputs {
        Outputs::None => None,
        Outputs::All => Some(Spot::Output),
        Outputs::Others => Some(Spot::Others),
    };
    outputs.into_iter().chain(into.scratch.map(Spot::Scratch)).collect()
}
