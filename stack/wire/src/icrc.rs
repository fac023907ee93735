//! The invariant CRC (IBA annex A17.3.3): Ethernet's CRC-32 over eight bytes of ones, then the packet from the IP
//! header on, with everything that changes on the way taken as ones.

/// Bytes of the invariant CRC on the wire.
pub const ICRC_LENGTH: usize = 4;

/// The CRC after eight bytes of ones, which stand for the missing local route header.
const AFTER_ONES: u32 = 0x2144_df1c;

/// Ethernet's polynomial, the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// An invariant CRC under way. What is covered may come in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icrc(u32);

impl Default for Icrc {
    fn default() -> Self {
        Self::new()
    }
}

impl Icrc {
    /// Before the first byte of the IP header.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(AFTER_ONES)
    }

    /// Goes on with these bytes, as they are.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if bytes.len() < SHORT_END {
            self.0 = short(self.0, bytes);
            return;
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        self.0 = hasher.finalize();
    }

    /// Goes on with a base transport header, whose congestion bits count as ones.
    #[inline]
    pub fn update_bth(&mut self, bytes: &[u8; crate::BTH_LENGTH]) {
        let mut masked = *bytes;
        let [_, _, _, _, congestion, ..] = &mut masked;
        *congestion = 0xff;
        self.update(&masked);
    }

    /// The bytes at the packet's end.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; ICRC_LENGTH] {
        // The only field on the wire whose first byte is the least significant.
        self.0.to_le_bytes()
    }

    const fn from_bytes(bytes: [u8; ICRC_LENGTH]) -> Self {
        Self(u32::from_le_bytes(bytes))
    }
}

/// Pieces shorter than this, as all headers are, are done with here: to ask each time what the processor offers, which is
/// what `crc32fast` does, takes as long as their CRC.
const SHORT_END: usize = 64;

/// What a byte does to the CRC that has none behind it, that has one, two, ... seven: "slicing by eight" (Kounavis and
/// Berry, 2005).
const SLICES: [[u32; 256]; 8] = {
    let mut slices = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        slices[0][byte] = crc;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = slices[behind - 1][byte];
            slices[behind][byte] = before >> 8 ^ slices[0][(before & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    slices
};

/// The CRC after these bytes as well, which are few.
#[inline]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    let slice = |behind: usize, byte: u8| SLICES[behind][usize::from(byte)];
    let four = |at: usize, word: u32| {
        let [a, b, c, d] = word.to_le_bytes();
        slice(at + 3, a) ^ slice(at + 2, b) ^ slice(at + 1, c) ^ slice(at, d)
    };
    let mut crc = !crc;
    let (pairs, rest) = bytes.as_chunks::<8>();
    for [a, b, c, d, e, f, g, h] in pairs {
        let (front, behind) = (u32::from_le_bytes([*a, *b, *c, *d]), u32::from_le_bytes([*e, *f, *g, *h]));
        crc = four(4, crc ^ front) ^ four(0, behind);
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        crc = four(0, crc ^ u32::from_le_bytes(*word));
    }
    for byte in rest {
        crc = crc >> 8 ^ slice(0, crc as u8 ^ byte);
    }
    !crc
}

/// What the network's headers say about the CRC of the packet behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// All that is covered is known: this is the CRC up to the base transport header.
    Exact(Icrc),
    /// All but the identification in the IPv4 header, which a socket does not tell: this is the CRC with a guess.
    /// Whatever differs must be explained by some identification, which leaves 16 of the CRC's 32 bits as a check.
    AnyIdentification(Icrc),
}

impl Check {
    /// The CRC to go on from.
    pub(crate) const fn start(self) -> Icrc {
        match self {
            Self::Exact(icrc) | Self::AnyIdentification(icrc) => icrc,
        }
    }

    /// Whether a packet whose transport part has `length` bytes and a CRC of `computed` may carry `received`.
    pub(crate) fn accepts(self, computed: Icrc, received: [u8; ICRC_LENGTH], length: usize) -> bool {
        let received = Icrc::from_bytes(received);
        match self {
            _ if received == computed => true,
            Self::Exact(_) => false,
            Self::AnyIdentification(_) => is_explained(computed, received, length),
        }
    }
}

/// Covered bytes of an IPv4 packet from the identification's first byte to the base transport header.
const FROM_IDENTIFICATION: usize = 16 + 8;

/// Whether another identification than the one that `computed` was made with gives `received`.
///
/// The CRC is linear: what the two differ by is what the identifications differ by, followed by as many zeros as bytes
/// follow them. Taking these zeros back leaves the two bytes in the lower half and nothing in the upper one.
fn is_explained(computed: Icrc, received: Icrc, length: usize) -> bool {
    let covered = FROM_IDENTIFICATION + length.saturating_sub(ICRC_LENGTH);
    multiply(computed.0 ^ received.0, zeros_taken_back(covered)) >> 16 == 0
}

/// The product of two polynomials modulo [`POLYNOMIAL`].
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 1 << 31);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 0 { b >> 1 } else { b >> 1 ^ POLYNOMIAL };
        bit >>= 1;
    }
    product
}

/// x^-8 to the powers 1, 2, 4, ...: each takes back that many zero bytes.
const TAKEN_BACK: [u32; 16] = {
    let mut powers = [0; 16];
    // x^-1 is what x times gives one: one plus the polynomial, divided by x.
    let mut power = (((1 << 31) ^ POLYNOMIAL) << 1) | 1;
    let mut doubling = 0;
    while doubling < 3 + 16 {
        if doubling >= 3 {
            powers[doubling - 3] = power;
        }
        power = multiply(power, power);
        doubling += 1;
    }
    powers
};

/// x^-8 to the power of `bytes`, of which 16 bits count.
fn zeros_taken_back(bytes: usize) -> u32 {
    let ones = TAKEN_BACK.iter().enumerate().filter(|(bit, _)| bytes >> bit & 1 != 0);
    ones.fold(1 << 31, |product, (_, power)| multiply(product, *power))
}
