//! Tests of tuning files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn saved() -> Saved {
    let constants = Constants { latency_ns: 1234.5, byte_ns: 0.25, ..Constants::default() };
    let constants = Constants { channels: 4.0, channel_byte_ns: 0.75, ..constants };
    let rule = |bytes_max, algorithm, chunk_bytes, channels| SavedRule {
        nodes: 3,
        rule: Rule { operation: Operation::Allreduce, bytes_max, algorithm, chunk_bytes, channels },
    };
    let hosts = Some(vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()]);
    Saved {
        links: vec![
            SavedLinks { device: "tcp".to_owned(), hosts, constants },
            SavedLinks { device: "roce".to_owned(), hosts: None, constants: Constants::default() },
        ],
        rules: vec![rule(4096, Algorithm::Direct, 0, 0), rule(u64::MAX, Algorithm::Ring, 1 << 20, 2)],
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = std::env::temp_dir().join(format!("ringway-tuning-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("tuning.toml");
    write_tuning(&path, &saved()).unwrap();
    assert_eq!(read_tuning(&path).unwrap(), saved());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
    std::fs::remove_dir_all(&folder).unwrap();
    let missing = read_tuning(&path).unwrap_err().to_string();
    assert!(missing.contains("cannot be read") && missing.contains("tuning.toml"), "{missing}");
}

#[test]
fn what_is_wrong_is_named() {
    let links = "device = 'tcp'\nlatency_ns = 1.0\nmessage_ns = 1.0\nreduce_ns = 1.0\ncopy_ns = 1.0\n";
    let rule = "nodes = 2\noperation = 'allreduce'\n";
    for (text, word) in [
        (format!("[[links]]\n{links}"), "byte_ns"),
        (
            format!("[[links]]\n{links}byte_ns = -1.0"),
            "links 1: the constant byte_ns is -1; it must be a number",
        ),
        (
            format!("[[links]]\n{links}byte_ns = 1.0\nchannels = 9"),
            "links 1: the constant channels is 9; it must be a number from 0 to 8",
        ),
        (format!("[[rules]]\n{rule}algorithm = 'ring'\nchannels = 9"), "channels is 9; it must be 0 to 8"),
        (format!("[[links]]\n{links}byte_ns = nan"), "links 1: the constant byte_ns is NaN"),
        (format!("[[links]]\n{links}byte_ns = 1.0\nbits = 3"), "bits"),
        (format!("[[rules]]\n{rule}algorithm = 'rings'"), "rule 1: `rings` is not an algorithm; there are"),
        ("[[rules]]\nnodes = 2\noperation = 'send'\nalgorithm = 'ring'".to_owned(), "rule 1: `send` is not"),
        (
            "[[rules]]\nnodes = 2\noperation = 'scan'\nalgorithm = 'ring'".to_owned(),
            "rule 1: ring does not do scan",
        ),
        (
            format!("[[rules]]\n{rule}algorithm = 'ring'\nchunk_bytes = 1"),
            "chunk_bytes is 1; it must be 256 to",
        ),
        (
            format!("[[rules]]\n{rule}algorithm = 'ring'\n[[rules]]\n{rule}algorithm = 'ring'"),
            "order of their sizes",
        ),
    ] {
        let message = parse(&text).unwrap_err();
        assert!(message.contains(word), "{text}: {message}");
    }
}

/// What stands in the documentation is read.
#[test]
fn the_example_is_right() {
    let source = include_str!("tuning_file.rs");
    let example: Vec<&str> = source
        .lines()
        .skip_while(|line| *line != "//! ```toml")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| line.trim_start_matches("//!").trim_start())
        .collect();
    let saved = parse(&example.join("\n")).unwrap();
    assert_eq!((saved.links.len(), saved.rules.len()), (1, 1));
}
