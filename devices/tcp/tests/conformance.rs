//! The tcp device passes the suite over loopback, with either driver and between them, over one connection and over several.
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

mod striped {
    use crate::common::{Loopback, STRIPED};
    ringway_sim::conformance_suite!(Loopback<STRIPED, STRIPED>);
}

mod striped_epoll {
    use crate::common::{Loopback, STRIPED_EPOLL};
    ringway_sim::conformance_suite!(Loopback<STRIPED_EPOLL, STRIPED_EPOLL>);
}

/// The side that is connected to is told of one connection, and takes as many as the other makes.
mod striped_to_epoll {
    use crate::common::{EPOLL, Loopback, STRIPED};
    ringway_sim::conformance_suite!(Loopback<STRIPED, EPOLL>);
}

mod striped_zero_copy {
    use crate::common::{Loopback, STRIPED_ZERO_COPY};
    ringway_sim::conformance_suite!(Loopback<STRIPED_ZERO_COPY, STRIPED_ZERO_COPY>);
}
