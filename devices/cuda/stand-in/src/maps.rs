//! What the process has mapped, as the kernel tells.

use crate::regions::{Access, Span};

/// A line of `/proc/self/maps`: the bytes, and what the process may do with them.
fn parse_line(line: &str) -> Option<(Span, Access)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let access = match fields.next()?.as_bytes() {
        [b'r', b'w', ..] => Access::ReadWrite,
        [b'r', ..] => Access::Read,
        _ => Access::None,
    };
    Some((Span { start, end }, access))
}

/// Whether the process itself may do this with all of these bytes.
pub(crate) fn allow(span: Span, access: Access) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut reached = span.start;
    // The lines are in the order of addresses.
    for (mapped, allowed) in maps.lines().filter_map(parse_line) {
        if mapped.start <= reached && reached < mapped.end && allowed >= access {
            reached = mapped.end;
        }
    }
    reached >= span.end
}

#[cfg(test)]
mod tests {
    use super::{Access, Span, allow, parse_line};

    #[test]
    fn lines_are_understood() {
        let line = "7f00001000-7f00003000 r--s 00000000 00:01 1034 /memfd:x (deleted)";
        let span = Span { start: 0x7f_0000_1000, end: 0x7f_0000_3000 };
        assert_eq!(parse_line(line), Some((span, Access::Read)));
        assert_eq!(parse_line("nonsense"), None);
    }

    #[test]
    fn own_memory_is_found() {
        let own = vec![0_u8; 100_000];
        let span = Span::new(own.as_ptr().addr(), own.len()).unwrap();
        assert!(allow(span, Access::ReadWrite));
        assert!(!allow(Span::new(1, 1).unwrap(), Access::Read));
    }
}
