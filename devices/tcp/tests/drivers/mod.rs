//! Tests that are run with each driver.

/// Makes a `#[test]` of every named function for each driver, which it is given.
macro_rules! with_each_driver {
    ($($name:ident),* $(,)?) => {
        mod io_uring {
            $(#[test] fn $name() { super::$name(ringway_tcp::TcpDriver::IoUring); })*
        }
        mod epoll {
            $(#[test] fn $name() { super::$name(ringway_tcp::TcpDriver::Epoll); })*
        }
    };
}
