use std::io::Write as _;

use proptest::prelude::*;

use super::*;

fn blocks(source: impl Read + Send + 'static) -> (Vec<Vec<u8>>, u64) {
    let mut reader =
        BlockReader { source: Box::new(source), rest: Vec::new(), is_inside_long_line: false, long_lines: 0 };
    let (mut blocks, mut long_lines, mut data) = (Vec::new(), 0, Vec::new());
    while let Some(long) = reader.read(&mut data).unwrap() {
        long_lines += long;
        blocks.push(data.clone());
    }
    (blocks, long_lines)
}

/// Frames of Zstandard with one raw block each, since there is no encoder here.
fn zstd_frame(content: &[u8]) -> Vec<u8> {
    let mut frame = ZSTD_MAGIC.to_vec();
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
    for compressed in [members, frames, b"one\none\n".to_vec()] {
        let mut text = String::new();
        decompressed(Box::new(Cursor::new(compressed))).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\none\n");
    }
}

#[test]
fn broken_compressed_log_is_an_error() {
    let mut text = Vec::new();
    let broken = [&GZIP_MAGIC[..], b"nothing of the kind"].concat();
    assert!(decompressed(Box::new(Cursor::new(broken))).unwrap().read_to_end(&mut text).is_err());
    assert!(decompressed(Box::new(Cursor::new(ZSTD_MAGIC.to_vec()))).is_err());
}
