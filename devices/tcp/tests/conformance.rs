//! The tcp device passes the suite over loopback, with either driver and between them, over one connection and over several.
#![forbid(unsafe_code)]

mod common;

/// The suite between a device that connects and one that is connected to.
macro_rules! suites {
    ($($name:ident: $left:ident, $right:ident;)*) => {$(
        mod $name {
            use crate::common;
            ringway_sim::conformance_suite!(common::Loopback<{ common::$left }, { common::$right }>);
        }
    )*};
}

suites! {
    io_uring: IO_URING, IO_URING;
    epoll: EPOLL, EPOLL;
    io_uring_to_epoll: IO_URING, EPOLL;
    epoll_to_io_uring: EPOLL, IO_URING;
    busy_polling: BUSY_POLLING, BUSY_POLLING;
    zero_copy: ZERO_COPY, ZERO_COPY;
    striped: STRIPED, STRIPED;
    striped_epoll: STRIPED_EPOLL, STRIPED_EPOLL;
    // The side that is connected to is told of one connection, and takes as many as the other makes.
    striped_to_epoll: STRIPED, EPOLL;
    striped_zero_copy: STRIPED_ZERO_COPY, STRIPED_ZERO_COPY;
}
