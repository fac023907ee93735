//! The tcp device passes the suite over loopback, with either driver and between them.
#![forbid(unsafe_code)]

mod common;

mod io_uring {
    use crate::common::{IO_URING, Loopback};
    ringway_sim::conformance_suite!(Loopback<IO_URING, IO_URING>);
}

mod epoll {
    use crate::common::{EPOLL, Loopback};
    ringway_sim::conformance_suite!(Loopback<EPOLL, EPOLL>);
}

mod io_uring_to_epoll {
    use crate::common::{EPOLL, IO_URING, Loopback};
    ringway_sim::conformance_suite!(Loopback<IO_URING, EPOLL>);
}

mod epoll_to_io_uring {
    use crate::common::{EPOLL, IO_URING, Loopback};
    ringway_sim::conformance_suite!(Loopback<EPOLL, IO_URING>);
}

mod busy_polling {
    use crate::common::{BUSY_POLLING, Loopback};
    ringway_sim::conformance_suite!(Loopback<BUSY_POLLING, BUSY_POLLING>);
}

mod zero_copy {
    use crate::common::{Loopback, ZERO_COPY};
    ringway_sim::conformance_suite!(Loopback<ZERO_COPY, ZERO_COPY>);
}
