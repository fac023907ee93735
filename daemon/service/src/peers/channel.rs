//! What two daemons say to each other on a control connection, below the messages: who they are, then a Noise
//! channel. No I/O: bytes come in, bytes go out.
//!
//! Both sides start with a preface in the clear: [`MAGIC`], the version and zeroes, 16 bytes. The dialer speaks
//! first and waits for the acceptor's preface, so that two versions can still name each other. Then
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` with the preface as prologue: both sides prove that they hold the cluster
//! key. Everything after the preface is a frame: its length in two bytes, low one first, then a Noise message.
//! A frame of length zero during the handshake says that the other side's key is another one. An acceptor takes the
//! dialer for genuine only after its first frame in the channel, because a first handshake message can be replayed.

use ringway_group::MESSAGE_BYTES_MAX;
use snow::{
    Builder, HandshakeState, TransportState,
    params::HashChoice,
    resolvers::{CryptoResolver, DefaultResolver},
};

use crate::ClusterKey;

/// The first bytes of a control connection.
pub(crate) const MAGIC: [u8; 8] = *b"RINGCTRL";
/// The version of everything that daemons say to each other.
pub(crate) const VERSION: u32 = 5;
/// Bytes of the preface.
pub(crate) const PREFACE_BYTES: usize = 16;

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const TAG_BYTES: usize = 16;
const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + TAG_BYTES;
/// A handshake message: an ephemeral key of 32 bytes and a tag.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;
/// Bytes that may wait to be sent. A peer that lets more pile up is not reading.
const BACKLOG_BYTES_MAX: usize = 16 << 20;

/// Why a channel cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelError {
    /// The other side is something else.
    NotRingway,
    /// The other side speaks another version.
    OtherVersion(u32),
    /// The other side has another cluster key.
    OtherKey,
    /// Bytes that no daemon sends.
    Corrupt,
    /// The other side does not read.
    Backlog,
}

/// The key of the Noise handshake.
#[derive(Clone)]
pub(crate) struct PresharedKey([u8; 32]);

impl core::fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PresharedKey(secret)")
    }
}

impl PresharedKey {
    /// Derives it from the cluster key, which is 32 random bytes already: one BLAKE2s over a label and the key, so
    /// that the cluster key can serve for something else under another label.
    pub(crate) fn new(key: &ClusterKey) -> Option<Self> {
        let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s)?;
        let mut out = [0; 32];
        hash.input(b"ringway control channel 1\0");
        hash.input(key.bytes());
        hash.result(&mut out);
        Some(Self(out))
    }
}

/// Our preface in this version.
pub(crate) fn preface(version: u32) -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    for (to, from) in bytes.iter_mut().zip(MAGIC.into_iter().chain(version.to_le_bytes())) {
        *to = from;
    }
    bytes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Dialer,
    Acceptor,
}

#[derive(Debug)]
enum Stage {
    Preface,
    Handshake(Box<HandshakeState>),
    Open(Box<TransportState>),
    Closed,
}

/// One side of a control connection.
#[derive(Debug)]
pub(crate) struct Channel {
    side: Side,
    key: PresharedKey,
    version: u32,
    stage: Stage,
    /// The other side has proved that it holds the key.
    proven: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
}

impl Channel {
    /// The side that connects.
    pub(crate) fn dial(key: PresharedKey) -> Self {
        Self::new(Side::Dialer, key, VERSION)
    }

    /// The side that accepts.
    pub(crate) fn accept(key: PresharedKey) -> Self {
        Self::new(Side::Acceptor, key, VERSION)
    }

    #[cfg(test)]
    pub(crate) fn dial_as(key: PresharedKey, version: u32) -> Self {
        Self::new(Side::Dialer, key, version)
    }

    fn new(side: Side, key: PresharedKey, version: u32) -> Self {
        let outbox = if side == Side::Dialer { preface(version).to_vec() } else { Vec::new() };
        let (inbox, stage) = (Vec::new(), Stage::Preface);
        Self { side, key, version, stage, proven: false, inbox, outbox, sent: 0 }
    }

    /// Whether messages can be sent: both sides have proved who they are.
    pub(crate) fn is_open(&self) -> bool {
        self.proven && matches!(self.stage, Stage::Open(_))
    }

    /// What waits to be written.
    pub(crate) fn output(&self) -> &[u8] {
        self.outbox.get(self.sent..).unwrap_or_default()
    }

    /// So many bytes of [`Channel::output`] were written.
    pub(crate) fn written(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes).min(self.outbox.len());
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        } else if self.sent >= FRAME_BYTES_MAX {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Takes bytes that arrived and adds the messages they complete; an empty one only shows life. After an error
    /// what is left in [`Channel::output`] should still be written: it tells the other side.
    pub(crate) fn received(&mut self, bytes: &[u8], messages: &mut Vec<Vec<u8>>) -> Result<(), ChannelError> {
        self.inbox.extend_from_slice(bytes);
        let result = self.consume(messages);
        if result.is_err() {
            self.stage = Stage::Closed;
            self.inbox.clear();
        }
        result
    }

    /// Adds a message to what is to be written; an empty one only shows life.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let Stage::Open(transport) = &mut self.stage else { return Err(ChannelError::Corrupt) };
        if self.outbox.len() > BACKLOG_BYTES_MAX {
            return Err(ChannelError::Backlog);
        }
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(ChannelError::Corrupt);
        }
        let mut frame = vec![0; message.len() + TAG_BYTES];
        let length = transport.write_message(message, &mut frame).map_err(|_| ChannelError::Corrupt)?;
        self.push_frame(frame.get(..length).unwrap_or_default())
    }

    fn consume(&mut self, messages: &mut Vec<Vec<u8>>) -> Result<(), ChannelError> {
        if matches!(self.stage, Stage::Preface) {
            self.check_magic()?;
            let Some(theirs) = self.take(PREFACE_BYTES) else { return Ok(()) };
            self.greet(&theirs)?;
        }
        while let Some(frame) = self.take_frame()? {
            self.frame(&frame, messages)?;
        }
        Ok(())
    }

    /// Says as early as possible that the other side is something else.
    fn check_magic(&self) -> Result<(), ChannelError> {
        let matches = self.inbox.iter().zip(MAGIC).all(|(a, b)| *a == b);
        if matches { Ok(()) } else { Err(ChannelError::NotRingway) }
    }

    fn greet(&mut self, theirs: &[u8]) -> Result<(), ChannelError> {
        let mine = preface(self.version);
        if self.side == Side::Acceptor {
            self.outbox.extend_from_slice(&mine);
        }
        let version = theirs.get(MAGIC.len()..).and_then(|rest| rest.first_chunk::<4>());
        let version = version.map(|b| u32::from_le_bytes(*b)).ok_or(ChannelError::Corrupt)?;
        if version != self.version {
            return Err(ChannelError::OtherVersion(version));
        }
        let parameters = NOISE.parse().map_err(|_| ChannelError::Corrupt)?;
        let builder = Builder::new(parameters)
            .prologue(&mine)
            .and_then(|b| b.psk(0, &self.key.0))
            .map_err(|_| ChannelError::Corrupt)?;
        let handshake = match self.side {
            Side::Dialer => builder.build_initiator(),
            Side::Acceptor => builder.build_responder(),
        };
        let mut handshake = Box::new(handshake.map_err(|_| ChannelError::Corrupt)?);
        if self.side == Side::Dialer {
            let first = write_handshake(&mut handshake)?;
            self.push_frame(&first)?;
        }
        self.stage = Stage::Handshake(handshake);
        Ok(())
    }

    fn frame(&mut self, frame: &[u8], messages: &mut Vec<Vec<u8>>) -> Result<(), ChannelError> {
        match core::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Handshake(handshake) => self.handshake(handshake, frame),
            Stage::Open(mut transport) => {
                let mut message = vec![0; frame.len()];
                // Before its first frame an acceptor cannot tell a wrong key from a replayed handshake: neither is
                // a daemon of this cluster.
                let wrong = if self.proven { ChannelError::Corrupt } else { ChannelError::OtherKey };
                let length = transport.read_message(frame, &mut message).map_err(|_| wrong)?;
                message.truncate(length);
                self.proven = true;
                messages.push(message);
                self.stage = Stage::Open(transport);
                Ok(())
            }
            Stage::Preface | Stage::Closed => Err(ChannelError::Corrupt),
        }
    }

    fn handshake(&mut self, mut handshake: Box<HandshakeState>, frame: &[u8]) -> Result<(), ChannelError> {
        let mut nothing = [0; HANDSHAKE_BYTES];
        if handshake.read_message(frame, &mut nothing) != Ok(0) {
            if self.side == Side::Acceptor {
                self.push_frame(&[])?;
            }
            return Err(ChannelError::OtherKey);
        }
        if self.side == Side::Acceptor {
            let second = write_handshake(&mut handshake)?;
            self.push_frame(&second)?;
        }
        let transport = handshake.into_transport_mode().map_err(|_| ChannelError::Corrupt)?;
        self.stage = Stage::Open(Box::new(transport));
        if self.side == Side::Dialer {
            self.proven = true;
            self.send(&[])?;
        }
        Ok(())
    }

    fn push_frame(&mut self, frame: &[u8]) -> Result<(), ChannelError> {
        let length = u16::try_from(frame.len()).map_err(|_| ChannelError::Corrupt)?;
        self.outbox.extend_from_slice(&length.to_le_bytes());
        self.outbox.extend_from_slice(frame);
        Ok(())
    }

    fn take_frame(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        let Some(head) = self.inbox.first_chunk::<2>() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*head));
        let allowed = match self.stage {
            Stage::Handshake(_) => length == HANDSHAKE_BYTES || (length == 0 && self.side == Side::Dialer),
            _ => (TAG_BYTES..=FRAME_BYTES_MAX).contains(&length),
        };
        if !allowed {
            return Err(ChannelError::Corrupt);
        }
        if self.inbox.len() < 2 + length {
            return Ok(None);
        }
        self.take(2);
        Ok(self.take(length))
    }

    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        (self.inbox.len() >= bytes).then(|| self.inbox.drain(..bytes).collect())
    }
}

fn write_handshake(handshake: &mut HandshakeState) -> Result<Vec<u8>, ChannelError> {
    let mut message = vec![0; HANDSHAKE_BYTES];
    let length = handshake.write_message(&[], &mut message).map_err(|_| ChannelError::Corrupt)?;
    message.truncate(length);
    Ok(message)
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
