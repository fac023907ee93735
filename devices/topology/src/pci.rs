//! Places on PCI Express, and the links to them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Where a function of a device is, such as `0000:17:00.1`: domain, bus, device and function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// Which of the host's separate buses; what VMD makes are above 65535.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// Below 32.
    pub device: u8,
    /// Below 8.
    pub function: u8,
}

/// What a bridge or a device hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciParent {
    /// A host bridge by the domain and the number of its first bus, such as `pci0000:17`.
    Root(u32, u8),
    /// A bridge: a root port, or a switch's upstream or downstream port.
    Bridge(PciAddress),
}

/// Why a text is no place on PCI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct NoPciAddress {
    /// The text, as far as it is short.
    pub text: String,
    /// What it should have been.
    pub expected: &'static str,
}

impl NoPciAddress {
    fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.chars().take(40).collect(), expected }
    }
}

/// A number of so many hexadecimal digits, or more where there may be more.
fn hex(text: &str, least: usize, most: usize) -> Option<u32> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let is_long = (least..=most).contains(&text.len()) && (text.len() == least || !text.starts_with('0'));
    u32::from_str_radix(text, 16).ok().filter(|_| is_hex && is_long)
}

fn address(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let byte = |text, digits| hex(text, digits, digits).and_then(|number| u8::try_from(number).ok());
    Some(PciAddress {
        domain: hex(domain, 4, 8)?,
        bus: byte(bus, 2)?,
        device: byte(device, 2).filter(|device| *device < 32)?,
        function: byte(function, 1).filter(|function| *function < 8)?,
    })
}

impl FromStr for PciAddress {
    type Err = NoPciAddress;

    fn from_str(text: &str) -> Result<Self, NoPciAddress> {
        address(text).ok_or_else(|| NoPciAddress::new(text, "a PCI address such as 0000:17:00.1"))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciParent {
    type Err = NoPciAddress;

    fn from_str(text: &str) -> Result<Self, NoPciAddress> {
        let root = |text: &str| {
            let (domain, bus) = text.split_once(':')?;
            Some(Self::Root(hex(domain, 4, 8)?, u8::try_from(hex(bus, 2, 2)?).ok()?))
        };
        let parent = match text.strip_prefix("pci") {
            Some(text) => root(text),
            None => address(text).map(Self::Bridge),
        };
        let expected = "a host bridge such as pci0000:17, or a bridge's address such as 0000:17:00.0";
        parent.ok_or_else(|| NoPciAddress::new(text, expected))
    }
}

impl fmt::Display for PciParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(domain, bus) => write!(f, "pci{domain:04x}:{bus:02x}"),
            Self::Bridge(address) => address.fmt(f),
        }
    }
}

/// Both are texts in files.
macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

as_text!(PciAddress, PciParent);

/// A bridge, a NIC or a GPU as part of the PCI tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciDevice {
    /// Where it is.
    pub address: PciAddress,
    /// What it hangs on.
    pub parent: PciParent,
    /// Its link towards the processor; none of what is within a processor or a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<PciLink>,
}

/// A link of PCI Express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciLink {
    /// Mega-transfers per second of each lane now; many GPUs and bridges slow down while nobody uses them.
    pub speed_mts: u32,
    /// Lanes in use.
    pub lanes: u8,
    /// The most mega-transfers per second of each lane that this end can.
    pub max_speed_mts: u32,
    /// The most lanes that this end has.
    pub max_lanes: u8,
}

/// Mega-transfers per second of generations 1 to 7 (PCI Express Base Specification 7.0, section 4.2).
const GENERATIONS: [u32; 7] = [2500, 5000, 8000, 16_000, 32_000, 64_000, 128_000];

impl PciLink {
    /// Bits per second, in millions, that the lanes carry each way at full speed, before packets' headers.
    #[must_use]
    pub fn max_mbps(&self) -> u64 {
        // Of the bits on the wire: 8b/10b, then 128b/130b, then flits of 242 bytes of 256.
        let (of, all) = match self.max_speed_mts {
            ..=5000 => (8, 10),
            5001..64_000 => (128, 130),
            64_000.. => (242, 256),
        };
        u64::from(self.max_speed_mts) * u64::from(self.lanes) * of / all
    }

    /// The generation whose speed this is: 5 of 32,000 MT/s.
    #[must_use]
    pub fn generation(speed_mts: u32) -> Option<usize> {
        GENERATIONS.iter().position(|speed| *speed == speed_mts).map(|index| index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_print_as_they_are_read() {
        for text in ["0000:17:00.1", "10000:e1:1f.7", "ffffffff:ff:1f.0"] {
            assert_eq!(text.parse::<PciAddress>().expect("an address").to_string(), text);
            assert_eq!(text.parse::<PciParent>().expect("a bridge").to_string(), text);
        }
        assert_eq!("pci0000:e0".parse(), Ok(PciParent::Root(0, 0xe0)));
        assert_eq!(PciParent::Root(0x1_0000, 1).to_string(), "pci10000:01");
        for wrong in
            ["", "17:00.0", "0000:17:20.0", "0000:17:00.8", "0000:1:00.0", "00000:17:00.0", "0000:17:00.0 "]
        {
            assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
        }
        for wrong in ["pci", "pci0000", "pci0000:1", "PCI0000:17", "pci0000:17:00.0"] {
            assert!(wrong.parse::<PciParent>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_carries_what_its_coding_leaves() {
        let link = |max_speed_mts, lanes| PciLink { speed_mts: 2500, lanes, max_speed_mts, max_lanes: 16 };
        assert_eq!(link(5000, 16).max_mbps(), 64_000);
        assert_eq!(link(32_000, 16).max_mbps(), 504_123);
        assert_eq!(link(64_000, 16).max_mbps(), 968_000);
        assert_eq!(PciLink::generation(32_000), Some(5));
        assert_eq!(PciLink::generation(1), None);
    }
}
