//! What a device has counted.

/// What a device has counted since it was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests handed to the device, and the doorbells rung for them.
    pub(crate) requests_sent: u64,
    pub(crate) doorbells: u64,
    /// Of these, those whose end the device told, and those that carried their bytes in themselves.
    pub(crate) requests_signalled: u64,
    pub(crate) requests_inline: u64,
    /// Calls into the kernel after connecting: a device in software takes one for each doorbell, and to be armed.
    pub(crate) system_calls: u64,
    /// Messages that came.
    pub(crate) messages_received: u64,
    /// Bytes of requests that succeeded, and of messages that came.
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Times connections were tried, for signs of life.
    pub(crate) probes: u64,
    /// Times a connection was made anew because the peer was not there yet.
    pub(crate) reconnects: u64,
    /// Times the port went down, and came up again.
    pub(crate) port_downs: u64,
    pub(crate) port_ups: u64,
    /// Queue pairs that failed, but not by their owner's wish.
    pub(crate) failures: u64,
}

impl Counters {
    /// Hands over each count with its name.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(&'static str, u64)) {
        for (name, value) in [
            ("requests_sent", self.requests_sent),
            ("requests_signalled", self.requests_signalled),
            ("requests_inline", self.requests_inline),
            ("doorbells", self.doorbells),
            ("system_calls", self.system_calls),
            ("messages_received", self.messages_received),
            ("bytes_sent", self.bytes_sent),
            ("bytes_received", self.bytes_received),
            ("probes", self.probes),
            ("reconnects", self.reconnects),
            ("port_downs", self.port_downs),
            ("port_ups", self.port_ups),
            ("failures", self.failures),
        ] {
            each(name, value);
        }
    }
}
