//! The acknowledgement header and its syndrome.

use crate::bytes::low_24;

/// How many further requests the responder has room for, as a five-bit code (IBA volume 1, 9.7.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Credits(u8);

/// What codes 0 to 30 stand for.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credits {
    /// The responder does not count: what rxe always says.
    pub const UNLIMITED: Self = Self(0x1f);

    /// The largest code that promises no more than `requests`.
    #[must_use]
    pub fn at_most(requests: u32) -> Self {
        let promising_less = CREDITS.partition_point(|count| u32::from(*count) <= requests);
        Self(u8::try_from(promising_less.saturating_sub(1)).unwrap_or_default())
    }

    /// How many requests, or `None` for [`Credits::UNLIMITED`].
    #[must_use]
    pub fn requests(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied().map(u32::from)
    }
}

/// How long a requester waits after a "receiver not ready", as a five-bit code (IBA volume 1, 9.7.5.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

/// What the codes stand for, in units of 10 us.
const RNR_TIMES_10_US: [u16; 32] = [
    // Code 0 is the longest.
    65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The timer with this code; `None` when it has more than five bits.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The shortest timer that is not shorter than this; the longest of all if every one is.
    #[must_use]
    pub fn at_least(delay_us: u32) -> Self {
        let code = (1..32).find(|code| Self(*code).delay_us() >= delay_us);
        Self(code.unwrap_or(0))
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long it is, in microseconds.
    #[must_use]
    pub fn delay_us(self) -> u32 {
        match RNR_TIMES_10_US.get(usize::from(self.0)) {
            Some(65535) | None => 655_360,
            Some(units) => u32::from(*units) * 10,
        }
    }
}

/// Why a request was not carried out (IBA volume 1, 9.7.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// Packets are missing; the packet sequence number is the one that was expected.
    SequenceError = 0,
    /// The request makes no sense, or is too long.
    InvalidRequest = 1,
    /// The memory key, range or access is wrong.
    RemoteAccess = 2,
    /// The responder cannot go on.
    RemoteOperational = 3,
    /// The reliable datagram is wrong.
    InvalidDatagram = 4,
}

impl NakCode {
    /// Every code.
    pub const ALL: [Self; 5] = [
        Self::SequenceError,
        Self::InvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperational,
        Self::InvalidDatagram,
    ];
}

/// What a responder says of the packet it names (IBA volume 1, 9.7.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// It and all before it have been carried out.
    Ack(Credits),
    /// No receive is posted for it: send it again after this time.
    RnrNak(RnrTimer),
    /// It was refused; all before it have been carried out.
    Nak(NakCode),
}

impl Syndrome {
    /// An acknowledgement that does not count credits.
    pub const ACK: Self = Self::Ack(Credits::UNLIMITED);

    /// The byte on the wire.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.0,
            Self::RnrNak(timer) => 0x20 | timer.0,
            Self::Nak(code) => 0x60 | code as u8,
        }
    }

    /// The syndrome with this byte; `None` when it is reserved.
    #[inline]
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let low = code & 0x1f;
        match code >> 5 {
            0 => Some(Self::Ack(Credits(low))),
            1 => Some(Self::RnrNak(RnrTimer(low))),
            3 => NakCode::ALL.get(usize::from(low)).copied().map(Self::Nak),
            _ => None,
        }
    }
}

/// The acknowledgement extension header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// What became of the request.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// Its bytes on the wire.
    pub const LENGTH: usize = 4;

    /// The bytes; of the message sequence number the lower 24 bits count.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        let [a, b, c] = low_24(self.msn);
        [self.syndrome.code(), a, b, c]
    }

    /// The header in these bytes; the syndrome if that is reserved.
    ///
    /// # Errors
    /// With the byte that is no syndrome.
    #[inline]
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Result<Self, u8> {
        let [syndrome, a, b, c] = *bytes;
        let msn = u32::from_be_bytes([0, a, b, c]);
        Ok(Self { syndrome: Syndrome::from_code(syndrome).ok_or(syndrome)?, msn })
    }
}
