//! How plan settings are said in messages: by name, so that whoever does not know an algorithm says so instead of taking
//! it for another, and read as what it is, somebody else's word: what is out of bounds is no message at all.

use ringway_plan::{Algorithm, PlanSettings, Preference, Rule, Tuning};
use ringway_types::Operation;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

/// The version of [`Settings`].
const VERSION: u16 = 3;

/// Plan settings in a message. At most 19 KiB: 64 rules of each of 16 operations, of 17 bytes each, and names.
#[derive(Serialize, Deserialize)]
struct Settings {
    version: u16,
    chunk_bytes: u64,
    direct_max_bytes: u64,
    depth: u32,
    pack_max_bytes: u64,
    group_nodes: u32,
    eager_write_max_bytes: u64,
    preference: String,
    /// The algorithms that rules name, by their place here.
    algorithms: Vec<String>,
    rules: Vec<SaidRule>,
}

/// Operation, bytes, the place of the algorithm, bytes of a chunk, and channels.
type SaidRule = (u8, u64, u8, u64, u8);

/// For `#[serde(with)]`.
pub(crate) mod settings {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(settings: &PlanSettings, to: S) -> Result<S::Ok, S::Error> {
        let mut algorithms: Vec<Algorithm> = settings.rules().iter().map(|rule| rule.algorithm).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let say = |rule: &Rule| {
            let at = algorithms.binary_search(&rule.algorithm).ok().and_then(|at| u8::try_from(at).ok());
            let channels = u8::try_from(rule.channels).ok()?;
            Some((rule.operation.code(), rule.bytes_max, at?, rule.chunk_bytes, channels))
        };
        let rules: Option<Vec<_>> = settings.rules().iter().map(say).collect();
        let tuning = *settings.tuning();
        let said = Settings {
            version: VERSION,
            chunk_bytes: tuning.chunk_bytes,
            direct_max_bytes: tuning.direct_max_bytes,
            depth: tuning.depth,
            pack_max_bytes: tuning.pack_max_bytes,
            group_nodes: tuning.group_nodes,
            eager_write_max_bytes: tuning.eager_write_max_bytes,
            preference: settings.preference().to_string(),
            algorithms: algorithms.iter().map(|algorithm| algorithm.name().to_owned()).collect(),
            rules: rules.ok_or_else(|| S::Error::custom("more than 256 algorithms or channels"))?,
        };
        said.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PlanSettings, D::Error> {
        let said = Settings::deserialize(from)?;
        if said.version != VERSION {
            return Err(D::Error::custom("plan settings of another version"));
        }
        let known = |name: &String| Algorithm::from_name(name);
        let algorithms: Option<Vec<Algorithm>> = said.algorithms.iter().map(known).collect();
        let algorithms = algorithms.ok_or_else(|| D::Error::custom("an algorithm that is not known"))?;
        let rule = |&(operation, bytes_max, algorithm, chunk_bytes, channels): &SaidRule| {
            let operation = Operation::from_code(operation)?;
            let algorithm = algorithms.get(usize::from(algorithm)).copied()?;
            Some(Rule { operation, bytes_max, algorithm, chunk_bytes, channels: channels.into() })
        };
        let rules: Option<Vec<Rule>> = said.rules.iter().map(rule).collect();
        let rules = rules.ok_or_else(|| D::Error::custom("a rule that is not known"))?;
        let tuning = Tuning {
            chunk_bytes: said.chunk_bytes,
            direct_max_bytes: said.direct_max_bytes,
            depth: said.depth,
            pack_max_bytes: said.pack_max_bytes,
            group_nodes: said.group_nodes,
            eager_write_max_bytes: said.eager_write_max_bytes,
        };
        let preference = said.preference.parse().map_err(D::Error::custom)?;
        PlanSettings::new(tuning, preference, rules).map_err(D::Error::custom)
    }
}

/// For `#[serde(with)]`.
pub(crate) mod constants {
    use super::*;
    use ringway_plan::tuner::Constants;

    pub(crate) fn serialize<S: Serializer>(constants: &Option<Constants>, to: S) -> Result<S::Ok, S::Error> {
        constants.map(|it| it.named().map(|(_, value)| value)).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Constants>, D::Error> {
        let Some(values) = Option::<[f64; 8]>::deserialize(from)? else { return Ok(None) };
        let constants = Constants::of(values);
        constants.checked().map(Some).map_err(D::Error::custom)
    }
}

/// For `#[serde(with)]`.
pub(crate) mod preference {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(preference: &Preference, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&preference.to_string())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Preference, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
