//! However many files of other daemons are mapped, there is room for those of clients.

use std::os::fd::AsFd;

use ringway_mem::{MAX_FOREIGN, MAX_FOREIGN_CLIENTS, Mapping, MemFd, PeerFile, Protection, Window};

#[test]
fn peers_leave_room_for_clients() {
    let (file, _populated) = MemFd::region("one page", 4096).expect("memory");
    let file = file.as_fd().try_clone_to_owned().expect("descriptor");
    let of_peer = || PeerFile::admit(file.try_clone().expect("descriptor"), 4096).expect("taken");
    let mut held = Vec::new();
    let one_more = loop {
        match of_peer() {
            PeerFile::Mapped(mapping) => held.push(mapping),
            unmapped => break unmapped,
        }
    };
    assert_eq!(held.len(), MAX_FOREIGN - MAX_FOREIGN_CLIENTS);
    let mut seen = [1; 10];
    assert_eq!(one_more.copy_to(4090, &Window::of_mut(&mut seen)), 6, "it is read nevertheless");
    assert_eq!(seen, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
    let of_client = || Mapping::foreign(file.as_fd(), 4096, Protection::ReadWrite);
    let clients: Vec<Mapping> =
        (0..MAX_FOREIGN_CLIENTS).map(|_| of_client().expect("there is room")).collect();
    assert!(of_client().is_err());
    held.pop();
    assert!(of_client().is_ok(), "clients take what peers leave");
    drop(clients);
}
