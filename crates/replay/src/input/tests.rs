use std::io::{Cursor, Write as _};

use proptest::prelude::*;

use super::*;

fn blocks(source: impl Read + Send + 'static) -> (Vec<Vec<u8>>, u64) {
    let mut reader = BlockReader::new(Box::new(source));
    let (mut blocks, mut long_lines, mut data) = (Vec::new(), 0, Vec::new());
    while let Some(long) = reader.read(&mut data).unwrap() {
        long_lines += long;
        blocks.push(data.clone());
    }
    (blocks, long_lines)
}

/// Frames of Zstandard with one raw block each, since there is no encoder here.
fn zstd_frame(content: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd];
    // A single segment, with the size of the content in four bytes.
    frame.push(0b1010_0000);
    frame.extend((content.len() as u32).to_le_bytes());
    let block = (content.len() as u32) << 3 | 1;
    frame.extend(&block.to_le_bytes()[..3]);
    frame.extend(content);
    frame
}

proptest! {
    #[test]
    fn blocks_are_whole_lines_and_together_the_log(lengths in proptest::collection::vec(0_usize..70_000, 0..30)) {
        let lines: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'x'; *length]).collect();
        let log = lines.concat_with_ends();
        let (blocks, long_lines) = blocks(Cursor::new(log.clone()));
        prop_assert!(blocks.iter().all(|block| block.is_empty() || block.ends_with(b"\n")));
        if long_lines == 0 {
            prop_assert_eq!(blocks.concat(), log);
        }
        let dropped = lengths.iter().filter(|length| **length > MAX_LINE_LENGTH).count();
        prop_assert!(long_lines as usize <= dropped);
    }
}

trait ConcatWithEnds {
    fn concat_with_ends(&self) -> Vec<u8>;
}

impl ConcatWithEnds for Vec<Vec<u8>> {
    fn concat_with_ends(&self) -> Vec<u8> {
        self.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
    }
}

#[test]
fn endless_line_is_skipped_in_bounded_memory() {
    let log = Cursor::new(b"first\n".to_vec())
        .chain(io::repeat(b'x').take(3 * BLOCK_SIZE as u64))
        .chain(Cursor::new(b"\nlast".to_vec()));
    let (blocks, long_lines) = blocks(log);
    assert_eq!((blocks.concat(), long_lines), (b"first\nlast".to_vec(), 1));
    assert!(blocks.iter().all(|block| block.len() <= BLOCK_SIZE));
}

#[test]
fn compressed_logs_are_decompressed() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"one\n").unwrap();
    let mut members = gzip.finish().unwrap();
    members.extend(members.clone());
    let frames = [zstd_frame(b"one\n"), zstd_frame(b"one\n")].concat();
    let skippable = [&b"\x5a\x2a\x4d\x18\x03\0\0\0abc"[..], &frames, b"\x50\x2a\x4d\x18\0\0\0\0"].concat();
    let padded = [&members[..], &[0; 1000]].concat();
    for compressed in [members, frames, skippable, padded, b"one\none\n".to_vec()] {
        let mut text = String::new();
        decompressed(Box::new(Cursor::new(compressed))).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\none\n");
    }
}

#[test]
fn broken_compressed_log_is_an_error() {
    let mut text = Vec::new();
    let broken = [&GZIP_MAGIC[..], b"nothing of the kind"].concat();
    assert!(decompressed(Box::new(Cursor::new(broken))).is_err() && text.is_empty());
    let magic = vec![0x28, 0xb5, 0x2f, 0xfd];
    assert!(decompressed(Box::new(Cursor::new(magic))).is_err());
    let frames = [zstd_frame(b"one\ntwo"), b"garbage".to_vec()].concat();
    let mut contents = decompressed(Box::new(Cursor::new(frames))).unwrap();
    assert!(contents.read_to_end(&mut text).is_err());
    assert_eq!(text, b"one\ntwo");
}

#[test]
fn truncated_log_has_its_whole_lines_before_the_error() {
    let lines: Vec<u8> = (0..60_000).flat_map(|line| format!("{line}\n").into_bytes()).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&lines).unwrap();
    let mut gzip = gzip.finish().unwrap();
    gzip.truncate(gzip.len() - 9);
    // Two blocks, the second of which is cut off.
    let first = &lines[..100_000];
    let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0b1010_0000];
    zstd.extend((lines.len() as u32).to_le_bytes());
    zstd.extend(&((first.len() as u32) << 3).to_le_bytes()[..3]);
    zstd.extend(first);
    zstd.extend(&(100_000_u32 << 3 | 1).to_le_bytes()[..3]);
    zstd.extend(&lines[100_000..150_000]);
    for (compressed, at_least) in [(gzip, 300_000), (zstd, 99_900)] {
        let mut reader = BlockReader::new(decompressed(Box::new(Cursor::new(compressed))).unwrap());
        let (mut read, mut block) = (Vec::new(), Vec::new());
        let error = loop {
            match reader.read(&mut block) {
                Ok(Some(_)) => read.extend_from_slice(&block),
                Ok(None) => panic!("no error"),
                Err(error) => break error,
            }
        };
        assert!(read.len() >= at_least && read.ends_with(b"\n") && lines.starts_with(&read), "{error}");
    }
}

#[test]
fn first_line_begins_behind_zeros_and_a_byte_order_mark() {
    let zeros = vec![0; 200_000];
    for before in [&zeros[..], b"\xef\xbb\xbf", &[&zeros, &b"\xef\xbb\xbf"[..]].concat(), b""] {
        let log = [before, b"one\n"].concat();
        let mut text = String::new();
        decompressed(Box::new(Cursor::new(log))).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\n");
    }
}
