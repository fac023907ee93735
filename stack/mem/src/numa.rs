//! Which NUMA node memory is on.

use core::ptr;

/// Of an address: the node of its page, which gets memory if it has none (get_mempolicy(2)).
const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;

/// The node that the page at an address of this process is on; `None` where the kernel does not tell, as to containers.
pub(crate) fn node_of(address: usize) -> Option<u32> {
    let mut node: libc::c_int = 0;
    let no_mask: *mut libc::c_ulong = ptr::null_mut();
    let none: libc::c_ulong = 0;
    // SAFETY: the node is live and written if the call succeeds; of the address the kernel looks up the page, and refuses one
    // that is not mapped.
    let result = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_mask, none, address, NODE_OF_ADDRESS)
    };
    if result == 0 { u32::try_from(node).ok() } else { None }
}
