//! The functions that libibverbs exports, found when the first device is made.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library as File;
use rdma_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

use crate::IbverbsError;

/// The name under which every distribution has the library (rdma-core's ABI has been 1 since 2006).
const FILE: &str = "libibverbs.so.1";

macro_rules! functions {
    (
        needed { $($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $($optional:ident = $newer:literal: fn($($its:ty),*) $(-> $gives:ty)?;)* }
    ) => {
        /// The library, which stays loaded.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Of newer libraries.
            $(pub(super) $optional: Option<unsafe extern "C" fn($($its),*) $(-> $gives)?>,)*
            /// What the functions are in.
            _file: File,
        }

        impl Library {
            fn of(file: File) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the type is that of the function's declaration in `infiniband/verbs.h`, where its `struct
                    // ibv_port_attr` begins as the older one that the exported `ibv_query_port` is declared with.
                    let $field = unsafe { *file.get($symbol)? };
                )*
                $(
                    // SAFETY: as above.
                    let $optional = unsafe { file.get($newer) }.ok().map(|found| *found);
                )*
                Ok(Self { $($field,)* $($optional,)* _file: file })
            }
        }
    };
}

functions! {
    needed {
        get_device_list = b"ibv_get_device_list\0": fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list = b"ibv_free_device_list\0": fn(*mut *mut ibv_device);
        get_device_name = b"ibv_get_device_name\0": fn(*mut ibv_device) -> *const c_char;
        open_device = b"ibv_open_device\0": fn(*mut ibv_device) -> *mut ibv_context;
        close_device = b"ibv_close_device\0": fn(*mut ibv_context) -> c_int;
        query_device = b"ibv_query_device\0": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        query_port = b"ibv_query_port\0": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        get_async_event = b"ibv_get_async_event\0": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event = b"ibv_ack_async_event\0": fn(*mut ibv_async_event);
        alloc_pd = b"ibv_alloc_pd\0": fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd = b"ibv_dealloc_pd\0": fn(*mut ibv_pd) -> c_int;
        reg_mr_iova2 = b"ibv_reg_mr_iova2\0": fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        dereg_mr = b"ibv_dereg_mr\0": fn(*mut ibv_mr) -> c_int;
        create_comp_channel = b"ibv_create_comp_channel\0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel = b"ibv_destroy_comp_channel\0": fn(*mut ibv_comp_channel) -> c_int;
        create_cq = b"ibv_create_cq\0": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        resize_cq = b"ibv_resize_cq\0": fn(*mut ibv_cq, c_int) -> c_int;
        destroy_cq = b"ibv_destroy_cq\0": fn(*mut ibv_cq) -> c_int;
        get_cq_event = b"ibv_get_cq_event\0": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events = b"ibv_ack_cq_events\0": fn(*mut ibv_cq, c_uint);
        create_qp = b"ibv_create_qp\0": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp = b"ibv_modify_qp\0": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        query_qp = b"ibv_query_qp\0": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        destroy_qp = b"ibv_destroy_qp\0": fn(*mut ibv_qp) -> c_int;
    }
    optional {
        reg_dmabuf_mr = b"ibv_reg_dmabuf_mr\0": fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

impl core::fmt::Debug for Library {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(FILE)
    }
}

/// The library, loaded at the first call.
pub(super) fn library() -> Result<&'static Library, IbverbsError> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: libibverbs has no initializer that could be called at a wrong time: every verbs program loads it.
        let file = unsafe { File::new(FILE) }.map_err(|error| error.to_string())?;
        Library::of(file).map_err(|error| format!("it is too old, rdma-core 34 or newer is needed: {error}"))
    });
    loaded.as_ref().map_err(|reason| IbverbsError::NoLibrary(reason.clone()))
}
