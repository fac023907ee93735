//! Queue pairs of reliable connections and their way through the states (IBA volume 1, 10.3.1; ibv_modify_qp(3)).

use core::{
    ffi::c_int,
    mem,
    ptr::{self, NonNull},
};
use std::sync::Arc;

use rdma_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use ringway_verbs::MAX_SEGMENTS;
use ringway_wire::{PathMtu, Psn};
use rustix::io::Errno;

use super::{CompletionQueue, Domain, checked, last_errno};
use crate::address::{Address, Route};

/// The partition that all ports belong to, at the table's first place.
const PARTITION_INDEX: u16 = 0;
/// Routers that packets may pass.
const HOP_LIMIT: u8 = 64;

/// Room in a queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    /// Bytes that requests may carry in themselves.
    pub(crate) inline: u32,
}

/// What INIT to RTR needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveAttributes {
    pub(crate) port: u8,
    pub(crate) address: Address,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) mtu: PathMtu,
    pub(crate) queue_pair: u32,
    pub(crate) psn: Psn,
    /// READs and atomics that it answers at once.
    pub(crate) rd_atomic: u8,
    /// A code of IBA volume 1, table 45.
    pub(crate) min_rnr_timer: u8,
}

/// What RTR to RTS needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendAttributes {
    pub(crate) psn: Psn,
    /// Unanswered for 4.096 us times two to this power, a request is repeated.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    /// Seven: for ever.
    pub(crate) rnr_retries: u8,
    /// READs and atomics under way.
    pub(crate) rd_atomic: u8,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) raw: NonNull<ibv_qp>,
    domain: Arc<Domain>,
    /// Bytes that a request may carry in itself.
    pub(crate) inline: u32,
}

// SAFETY: as of the context.
unsafe impl Send for QueuePair {}
// SAFETY: as of the context: functions of queue pairs may be called from any thread, and the driver has a lock for each.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair whose completions come by `queue`, which must live longer.
    pub(crate) fn new(domain: &Arc<Domain>, queue: &CompletionQueue, depths: Depths) -> Result<Self, Errno> {
        let segments = MAX_SEGMENTS as u32;
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: depths.send,
                max_recv_wr: depths.receive,
                max_send_sge: segments,
                max_recv_sge: 1,
                max_inline_data: depths.inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are there; the attributes are read, and what was given is written.
        let raw = unsafe { (domain.context.library.create_qp)(domain.raw.as_ptr(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        Ok(Self { raw, domain: Arc::clone(domain), inline: attributes.cap.max_inline_data })
    }

    /// Its number, which peers name it by.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: it is there.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: &[ibv_qp_attr_mask]) -> Result<(), Errno> {
        let mask = mask.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |all, one| all | one.0);
        let mask = c_int::try_from(mask).map_err(|_| Errno::INVAL)?;
        // SAFETY: it is there; the attributes that the mask names are read.
        checked(unsafe { (self.domain.context.library.modify_qp)(self.raw.as_ptr(), attributes, mask) })
    }

    /// RESET to INIT: receives may be posted. What peers may do is each region's to say.
    pub(crate) fn initialize(&self, port: u8, atomics: bool) -> Result<(), Errno> {
        // A device without atomics may refuse to hear of them.
        let atomic = match atomics {
            true => ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            false => ibv_access_flags(0),
        };
        let access =
            [ibv_access_flags::IBV_ACCESS_REMOTE_WRITE, ibv_access_flags::IBV_ACCESS_REMOTE_READ, atomic];
        let mut attributes = to(ibv_qp_state::IBV_QPS_INIT);
        attributes.pkey_index = PARTITION_INDEX;
        attributes.port_num = port;
        attributes.qp_access_flags = access.iter().fold(0, |all, flag| all | flag.0);
        let mask = [
            ibv_qp_attr_mask::IBV_QP_PKEY_INDEX,
            ibv_qp_attr_mask::IBV_QP_PORT,
            ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
        ];
        self.modify(&mut attributes, &mask)
    }

    /// INIT to RTR: packets of the peer are taken. On Ethernet the kernel finds out the peer's hardware address here, which
    /// takes up to a second where nobody has it.
    pub(crate) fn ready_to_receive(&self, receive: &ReceiveAttributes) -> Result<(), Errno> {
        let mut attributes = to(ibv_qp_state::IBV_QPS_RTR);
        attributes.ah_attr = vector(receive);
        attributes.path_mtu = u32::from(receive.mtu.code());
        attributes.dest_qp_num = receive.queue_pair;
        attributes.rq_psn = receive.psn.value();
        attributes.max_dest_rd_atomic = receive.rd_atomic;
        attributes.min_rnr_timer = receive.min_rnr_timer;
        let mask = [
            ibv_qp_attr_mask::IBV_QP_AV,
            ibv_qp_attr_mask::IBV_QP_PATH_MTU,
            ibv_qp_attr_mask::IBV_QP_DEST_QPN,
            ibv_qp_attr_mask::IBV_QP_RQ_PSN,
            ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC,
            ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
        ];
        self.modify(&mut attributes, &mask)
    }

    /// RTR to RTS: requests are sent.
    pub(crate) fn ready_to_send(&self, send: &SendAttributes) -> Result<(), Errno> {
        let mut attributes = to(ibv_qp_state::IBV_QPS_RTS);
        attributes.sq_psn = send.psn.value();
        attributes.timeout = send.timeout;
        attributes.retry_cnt = send.retries;
        attributes.rnr_retry = send.rnr_retries;
        attributes.max_rd_atomic = send.rd_atomic;
        let mask = [
            ibv_qp_attr_mask::IBV_QP_SQ_PSN,
            ibv_qp_attr_mask::IBV_QP_TIMEOUT,
            ibv_qp_attr_mask::IBV_QP_RETRY_CNT,
            ibv_qp_attr_mask::IBV_QP_RNR_RETRY,
            ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
        ];
        self.modify(&mut attributes, &mask)
    }

    /// The PSN of the next request of the peer that it would take, before it is reset.
    pub(crate) fn expected_psn(&self) -> Result<Psn, Errno> {
        let mut attributes = to(ibv_qp_state::IBV_QPS_RESET);
        // SAFETY: it has numbers and pointers only, for which zeros are values.
        let mut made: ibv_qp_init_attr = unsafe { mem::zeroed() };
        let mask = c_int::try_from(ibv_qp_attr_mask::IBV_QP_RQ_PSN.0).map_err(|_| Errno::INVAL)?;
        // SAFETY: it is there; both structures are written.
        checked(unsafe {
            let query = self.domain.context.library.query_qp;
            query(self.raw.as_ptr(), &raw mut attributes, mask, &raw mut made)
        })?;
        Ok(Psn::new(attributes.rq_psn))
    }

    /// Any state to ERR: what is outstanding is flushed.
    pub(crate) fn fail(&self) -> Result<(), Errno> {
        self.modify(&mut to(ibv_qp_state::IBV_QPS_ERR), &[])
    }

    /// Any state to RESET: what is outstanding is forgotten, and the device touches no memory for it any more.
    pub(crate) fn reset(&self) -> Result<(), Errno> {
        self.modify(&mut to(ibv_qp_state::IBV_QPS_RESET), &[])
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and nobody else has it; events of it have been acknowledged when they were taken.
        let _ = unsafe { (self.domain.context.library.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// Attributes of which only the state is set.
fn to(state: ibv_qp_state::Type) -> ibv_qp_attr {
    // SAFETY: it has numbers only, for which zeros are values.
    let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// The address vector of the peer.
fn vector(receive: &ReceiveAttributes) -> ibv_ah_attr {
    // SAFETY: it has numbers only, for which zeros are values.
    let mut vector: ibv_ah_attr = unsafe { mem::zeroed() };
    (vector.dlid, vector.sl, vector.port_num) = (receive.address.lid, receive.service_level, receive.port);
    if let Some(Route { to, from }) = receive.address.route {
        vector.is_global = 1;
        vector.grh = ibv_global_route {
            dgid: ibv_gid { raw: to.octets() },
            flow_label: 0,
            sgid_index: from,
            hop_limit: HOP_LIMIT,
            traffic_class: receive.traffic_class,
        };
    }
    vector
}
