//! An open device.

use core::{
    ffi::{CStr, c_int},
    mem::{MaybeUninit, offset_of},
    ptr::NonNull,
};
use std::{os::fd::BorrowedFd, sync::Arc};

use rdma_sys::{
    ibv_async_event, ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_event_type, ibv_port_attr,
    verbs_context,
};
use ringway_wire::PathMtu;
use rustix::{fs::OFlags, io::Errno};

use super::{
    checked, last_errno,
    library::{Library, library},
};
use crate::{DeviceEvent, IbverbsError};

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) raw: NonNull<ibv_context>,
    pub(super) library: &'static Library,
}

// SAFETY: every function of libibverbs may be called from any thread (ibv_create_qp(3) and the others: "thread safe").
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What the device as a whole can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) queue_pairs: u32,
    /// Requests of one queue.
    pub(crate) depth: u32,
    pub(crate) completions: u32,
    pub(crate) regions: u32,
    /// READs and atomics of one queue pair under way, as the one that asks and as the one that answers.
    pub(crate) rd_atomic_asked: u8,
    pub(crate) rd_atomic_answered: u8,
    pub(crate) atomics: bool,
}

/// What `verbs_context` has for asking about ports.
type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

/// What a port can do now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortAttributes {
    pub(crate) mtu: PathMtu,
    pub(crate) max_message: u32,
    /// Packets need a GRH also within the subnet.
    pub(crate) wants_route: bool,
}

/// Of a context whose functions go beyond the table of old (`__VERBS_ABI_IS_EXTENDED`).
const EXTENDED: usize = usize::MAX;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;

impl Context {
    /// Opens the device of this name.
    pub(crate) fn open(name: &str) -> Result<Arc<Self>, IbverbsError> {
        let library = library()?;
        let mut count: c_int = 0;
        // SAFETY: `count` is written before the function returns.
        let list = unsafe { (library.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(IbverbsError::system("the list of RDMA devices", last_errno()));
        }
        let mut opened = Err(IbverbsError::NoDriver(name.to_owned()));
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries until it is freed.
            let entry = unsafe { list.add(index) };
            // SAFETY: as above; it was written.
            let device = unsafe { entry.read() };
            // SAFETY: the device is of the list.
            let found = unsafe { (library.get_device_name)(device) };
            // SAFETY: names are C strings that live as long as the list.
            let found = unsafe { CStr::from_ptr(found) };
            if found.to_bytes() == name.as_bytes() {
                // SAFETY: the device is of the list, and stays while it is open.
                let raw = unsafe { (library.open_device)(device) };
                let refused =
                    IbverbsError::Open { device: name.to_owned(), errno: last_errno().raw_os_error() };
                opened = NonNull::new(raw).ok_or(refused);
            }
        }
        // SAFETY: it was made above and is used no more.
        unsafe { (library.free_device_list)(list) };
        let context = Self { raw: opened?, library };
        context.unblock_events()?;
        Ok(Arc::new(context))
    }

    /// Has [`Context::next_event`] return when there is none.
    fn unblock_events(&self) -> Result<(), IbverbsError> {
        let refused = |errno| IbverbsError::system("the descriptor of the device's events", errno);
        let events = self.events();
        let flags = rustix::fs::fcntl_getfl(events).map_err(refused)?;
        rustix::fs::fcntl_setfl(events, flags | OFlags::NONBLOCK).map_err(refused)
    }

    /// Readable when [`Context::next_event`] has something.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open; the number does not change.
        let number = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(number) }
    }

    /// What the device can do.
    pub(crate) fn limits(&self) -> Result<Limits, Errno> {
        let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open; the attributes are written.
        checked(unsafe { (self.library.query_device)(self.raw.as_ptr(), attributes.as_mut_ptr()) })?;
        // SAFETY: every bit pattern is a value, and it was zeroed.
        let attributes = unsafe { attributes.assume_init() };
        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let byte = |value: c_int| u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(Limits {
            queue_pairs: number(attributes.max_qp),
            depth: number(attributes.max_qp_wr),
            completions: number(attributes.max_cqe),
            regions: number(attributes.max_mr),
            rd_atomic_asked: byte(attributes.max_qp_init_rd_atom),
            rd_atomic_answered: byte(attributes.max_qp_rd_atom),
            atomics: attributes.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
        })
    }

    /// What a port can do.
    pub(crate) fn port(&self, number: u8) -> Result<PortAttributes, Errno> {
        let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
        let (context, into) = (self.raw.as_ptr(), attributes.as_mut_ptr());
        checked(match self.newer_query_port() {
            // SAFETY: the context is open. The function writes as much of the structure as its length allows.
            Some(query) => unsafe { query(context, number, into, size_of::<ibv_port_attr>()) },
            // SAFETY: the context is open. The function writes an older structure, which is the beginning of this one.
            None => unsafe { (self.library.query_port)(context, number, into) },
        })?;
        // SAFETY: every bit pattern is a value, and it was zeroed.
        let attributes = unsafe { attributes.assume_init() };
        let mtu = u8::try_from(attributes.active_mtu).ok().and_then(PathMtu::from_code);
        Ok(PortAttributes {
            mtu: mtu.ok_or(Errno::RANGE)?,
            max_message: attributes.max_msg_sz,
            wants_route: attributes.flags & GRH_REQUIRED != 0,
        })
    }

    /// The driver's own function for [`Context::port`], if it has one, as `verbs_get_ctx_op` of `infiniband/verbs.h` finds it: the
    /// exported one says nothing of flags.
    fn newer_query_port(&self) -> Option<QueryPort> {
        let context = self.raw.as_ptr();
        // SAFETY: the context is open.
        let marker = unsafe { (*context).abi_compat };
        if marker.addr() != EXTENDED {
            return None;
        }
        let extended = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        // SAFETY: by the marker the context is the last member of such a structure, whose size stands before it.
        let size = unsafe { (*extended).sz };
        // It grows at its beginning: so far back it must reach for the function to be there.
        if size < size_of::<verbs_context>() - offset_of!(verbs_context, query_port) {
            return None;
        }
        // SAFETY: by its size it has the member, which is written before the context is given out.
        unsafe { (*extended).query_port }
    }

    /// What the device says on its own, if it has said something.
    pub(crate) fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open; the event is written if the result is zero.
        if unsafe { (self.library.get_async_event)(self.raw.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        let event = event.as_mut_ptr();
        // SAFETY: it points to a whole event.
        let kind = unsafe { &raw const (*event).event_type };
        // SAFETY: it was written. It is read as a number, as newer libraries have kinds that the type does not know.
        let kind = unsafe { kind.cast::<u32>().read() };
        let is = |known: ibv_event_type| kind == known as u32;
        // SAFETY: the element is as large as its largest variant, all of whose bit patterns are values.
        let element = unsafe { &(*event).element };
        let is_fatal = is(ibv_event_type::IBV_EVENT_QP_FATAL);
        let told = if is_fatal
            || is(ibv_event_type::IBV_EVENT_QP_REQ_ERR)
            || is(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR)
        {
            // SAFETY: of these kinds the element is a queue pair.
            let queue_pair = unsafe { element.qp };
            // SAFETY: it cannot be destroyed before the event is acknowledged.
            DeviceEvent::QueuePair { number: unsafe { (*queue_pair).qp_num }, is_fatal }
        } else if is(ibv_event_type::IBV_EVENT_PORT_ACTIVE) || is(ibv_event_type::IBV_EVENT_PORT_ERR) {
            // SAFETY: of these kinds the element is a port's number.
            let number = u8::try_from(unsafe { element.port_num }).unwrap_or(0);
            DeviceEvent::Port { number, is_up: is(ibv_event_type::IBV_EVENT_PORT_ACTIVE) }
        } else if is(ibv_event_type::IBV_EVENT_CQ_ERR) {
            DeviceEvent::CompletionQueue
        } else if is(ibv_event_type::IBV_EVENT_DEVICE_FATAL) {
            DeviceEvent::Device
        } else if is(ibv_event_type::IBV_EVENT_GID_CHANGE) || is(ibv_event_type::IBV_EVENT_LID_CHANGE) {
            DeviceEvent::Addresses
        } else {
            DeviceEvent::Other
        };
        // SAFETY: it was got above, and its element is used no more.
        unsafe { (self.library.ack_async_event)(event) };
        Some(told)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made with the context keeps it alive, so nothing of it is left.
        let _ = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}
