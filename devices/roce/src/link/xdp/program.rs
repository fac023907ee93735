//! The program that the kernel runs on every frame of the interface: what is RoCE for our address goes to the link's
//! sockets, everything else its usual way.
//!
//! It is written as instructions (`linux/bpf.h`; RFC 9669), for one address and port. Fields of frames are compared as
//! they lie in memory, in the network's byte order.

use core::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What happens to a frame (`enum xdp_action`): it goes its usual way.
pub(super) const PASS: i32 = 2;

/// One instruction, as the kernel reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Register 0: what a call returns, and the program.
const R0: u8 = 0;
/// Register 1: at first the context (`struct xdp_md`), and the first argument of a call.
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;

// Fields of `struct xdp_md`.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_RX_QUEUE_INDEX: i16 = 16;

/// Bytes of the Ethernet header, behind which the IP header begins.
const IP: i16 = 14;
/// The UDP protocol's number.
const UDP: i32 = 17;
/// The call `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// In the source of a 64-bit constant: it is a map's descriptor.
const IS_MAP: u8 = 1;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: from << 4 | to, offset, immediate }
}

/// `to = from`.
const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

/// `to = value`.
const fn set(to: u8, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}

/// `to += value`.
const fn add(to: u8, value: i32) -> Instruction {
    instruction(0x07, to, 0, 0, value)
}

/// `to &= value`.
const fn and(to: u8, value: i32) -> Instruction {
    instruction(0x57, to, 0, 0, value)
}

/// `to =` the four bytes at `from + offset`.
const fn load_word(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x61, to, from, offset, 0)
}

/// `to =` the two bytes at `from + offset`.
const fn load_half(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x69, to, from, offset, 0)
}

/// `to =` the byte at `from + offset`.
const fn load_byte(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x71, to, from, offset, 0)
}

/// To the end if `one > other`; where that is [`redirect`] fills in.
const fn leave_if_greater(one: u8, other: u8) -> Instruction {
    instruction(0x2d, one, other, 0, 0)
}

/// To the end if the lower 32 bits of `one` are not `value`.
const fn leave_unless(one: u8, value: i32) -> Instruction {
    instruction(0x56, one, 0, 0, value)
}

const fn call(function: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, function)
}

const fn exit() -> Instruction {
    instruction(0x95, 0, 0, 0, 0)
}

/// Whether this is one of the jumps to the end.
const fn leaves(instruction: Instruction) -> bool {
    matches!(instruction.code, 0x2d | 0x56)
}

/// Two bytes in the network's order, as a load finds them.
fn network_half(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// The program for an address and port. A frame whose queue has no socket in the map has `otherwise` done to it.
pub(super) fn redirect(address: IpAddr, port: u16, map: BorrowedFd<'_>, otherwise: i32) -> Vec<Instruction> {
    let mut program = vec![
        load_word(R2, R1, CONTEXT_DATA),     // r2 = the frame's first byte
        load_word(R3, R1, CONTEXT_DATA_END), // r3 = one past its last byte
        copy(R4, R2), // r4 = r2 + all headers, which the kernel wants to see compared with r3
    ];
    match address {
        IpAddr::V4(address) => {
            let words = [i32::from_ne_bytes(address.octets())];
            program.extend([
                add(R4, i32::from(IP) + 20 + 8),        // Ethernet, IPv4, UDP
                leave_if_greater(R4, R3),               // shorter than that
                load_half(R5, R2, 12),                  // EtherType
                leave_unless(R5, network_half(0x0800)), // not IPv4
                load_byte(R5, R2, IP),                  // version and header length
                leave_unless(R5, 0x45),                 // not five words: options
                load_byte(R5, R2, IP + 9),              // protocol
                leave_unless(R5, UDP),                  // not UDP
                load_half(R5, R2, IP + 6),              // flags and fragment offset
                and(R5, network_half(0x3fff)),          // all but "do not fragment" and the reserved flag
                leave_unless(R5, 0),                    // a fragment
            ]);
            match_address(&mut program, IP + 16, &words); // destination
            match_port(&mut program, IP + 20, port);
        }
        IpAddr::V6(address) => {
            let octets = address.octets();
            let words: Vec<_> = octets
                .chunks_exact(4)
                .filter_map(|word| Some(i32::from_ne_bytes(word.try_into().ok()?)))
                .collect();
            program.extend([
                add(R4, i32::from(IP) + 40 + 8),        // Ethernet, IPv6, UDP
                leave_if_greater(R4, R3),               // shorter than that
                load_half(R5, R2, 12),                  // EtherType
                leave_unless(R5, network_half(0x86dd)), // not IPv6
                load_byte(R5, R2, IP + 6),              // next header
                leave_unless(R5, UDP),                  // not UDP: extension headers, fragments
            ]);
            match_address(&mut program, IP + 24, &words); // destination
            match_port(&mut program, IP + 40, port);
        }
    }
    program.extend([
        load_word(R2, R1, CONTEXT_RX_QUEUE_INDEX), // second argument: the key in the map
        instruction(0x18, R1, IS_MAP, 0, map.as_raw_fd()), // first argument: the map, as a 64-bit constant
        instruction(0, 0, 0, 0, 0),                // the constant's upper half
        set(R3, otherwise),                        // third argument: the verdict if there is none
        call(REDIRECT_MAP),                        // r0 = the verdict
        exit(),
    ]);
    let end = program.len();
    program.extend([set(R0, PASS), exit()]);
    for (at, one) in program.iter_mut().enumerate().filter(|(_, one)| leaves(**one)) {
        // An offset counts from the instruction behind the jump.
        one.offset = i16::try_from(end - at - 1).unwrap_or_default();
    }
    program
}

/// Goes on only if the address at this offset is the one in these words.
fn match_address(program: &mut Vec<Instruction>, offset: i16, words: &[i32]) {
    for (word, at) in words.iter().zip((offset..).step_by(4)) {
        program.extend([load_word(R5, R2, at), leave_unless(R5, *word)]);
    }
}

/// Goes on only if the UDP header at this offset has this destination port.
fn match_port(program: &mut Vec<Instruction>, udp: i16, port: u16) {
    program.extend([load_half(R5, R2, udp + 2), leave_unless(R5, network_half(port))]);
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use proptest::prelude::*;
    use ringway_wire::{Addresses, Ethernet, Flow};

    use super::{super::bpf, super::frame, *};

    /// The verdict for what is ours, where the map is empty: one that nothing else gets (`XDP_TX`).
    const OURS: u32 = 3;
    const NOT_OURS: u32 = PASS as u32;

    fn flow(v6: bool) -> Flow {
        let (from, to) = if v6 { ("fd00::1", "fd00:1::7:2") } else { ("10.0.0.1", "10.200.7.2") };
        let addresses = Addresses::new(from.parse().unwrap(), to.parse().unwrap()).unwrap();
        Flow::new(addresses, 50_000)
    }

    fn frame(flow: &Flow, transport: &[u8]) -> Vec<u8> {
        let ethernet = Ethernet::carrying(&flow.addresses, [2; 6], [4; 6]).to_bytes();
        let mut bytes = vec![0; frame::headers_length(flow) + transport.len()];
        frame::emit_headers(&mut bytes, ethernet, flow, 2).unwrap().copy_from_slice(transport);
        bytes
    }

    /// The program for the flow's destination; `None` without the privilege to load one.
    fn load(flow: &Flow) -> Option<(OwnedFd, OwnedFd)> {
        let map = match bpf::create_map(4) {
            Ok(map) => map,
            Err(error) => {
                ringway_sim::not_tried(&format!("needs root, to load programs ({error})"));
                return None;
            }
        };
        let otherwise = i32::try_from(OURS).unwrap();
        let to = flow.addresses.destination();
        let program = redirect(to, flow.destination_port, map.as_fd(), otherwise);
        Some((bpf::load(&program).unwrap(), map))
    }

    #[test]
    fn the_kernel_takes_the_program_and_it_tells_ours_from_the_rest() {
        for v6 in [false, true] {
            let flow = flow(v6);
            let Some((program, _map)) = load(&flow) else { return };
            let verdict = |frame: &[u8]| bpf::run(program.as_fd(), frame).unwrap();
            let ours = frame(&flow, &[1; 40]);
            assert_eq!(verdict(&ours), OURS);
            // Nothing but headers is enough to tell; a byte less is not.
            let headers = frame::headers_length(&flow);
            assert_eq!((verdict(&ours[..headers]), verdict(&ours[..headers - 1])), (OURS, NOT_OURS));
            let back = Flow { addresses: flow.addresses.reversed(), ..flow };
            assert_eq!(verdict(&frame(&back, &[1; 40])), NOT_OURS, "another address");
            let elsewhere = Flow { destination_port: 4790, ..flow };
            assert_eq!(verdict(&frame(&elsewhere, &[1; 40])), NOT_OURS, "another port");
        }
    }

    /// Every field that the program looks at: its bytes, and bits of them that it does not look at.
    const FIELDS_V4: [(usize, u8); 13] = [
        (12, 0),
        (13, 0),
        (14, 0),
        (20, 0xc0),
        (21, 0),
        (23, 0),
        (30, 0),
        (31, 0),
        (32, 0),
        (33, 0),
        (36, 0),
        (37, 0),
        (15, 0xff),
    ];

    #[test]
    fn every_bit_of_what_is_looked_at_matters() {
        let flow = flow(false);
        let Some((program, _map)) = load(&flow) else { return };
        let ours = frame(&flow, &[1; 40]);
        for (at, ignored) in FIELDS_V4 {
            for bit in 0..8 {
                let mut changed = ours.clone();
                changed[at] ^= 1 << bit;
                let expected = if ignored >> bit & 1 == 1 { OURS } else { NOT_OURS };
                let verdict = bpf::run(program.as_fd(), &changed).unwrap();
                assert_eq!(verdict, expected, "byte {at}, bit {bit}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// What the parser takes the program has redirected, whatever the frame: nothing of ours goes astray.
        #[test]
        fn the_program_agrees_with_the_parser(
            v6: bool, payload in proptest::collection::vec(any::<u8>(), 0..80),
            changes in proptest::collection::vec((0_usize..64, any::<u8>()), 0..3),
        ) {
            let flow = flow(v6);
            let Some((program, _map)) = load(&flow) else { return Ok(()) };
            let mut bytes = frame(&flow, &payload);
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            let verdict = bpf::run(program.as_fd(), &bytes).unwrap();
            prop_assert!(verdict == OURS || verdict == NOT_OURS);
            if frame::parse(&bytes, flow.addresses.destination(), flow.destination_port).is_some() {
                prop_assert_eq!(verdict, OURS);
            }
        }
    }
}
