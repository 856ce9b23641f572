//! One thread per log: reads blocks, parses their lines, and passes them on through a short queue.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::ReplayError;
use super::format::fields::FieldNames;
use super::format::{LineParser, LogFormat, next_line};
use super::input::{BlockReader, LogInput, MAX_LINE_LENGTH};
use super::record::{LineFault, LinePlace, LoggedRequest, ParsedBlock, UnreadableLine};
use super::time_check::TimeCheck;

/// Blocks that are parsed ahead.
const MAX_QUEUED_BLOCKS: usize = 2;
/// Lines that a report shows for each log, of those that cannot be read, and of those with an implausible time.
pub(super) const MAX_EXAMPLES: usize = 3;

/// A log that is being parsed.
pub(super) struct LogStream {
    blocks: Receiver<io::Result<ParsedBlock>>,
    spare: SyncSender<ParsedBlock>,
}

impl LogStream {
    /// Starts to parse a log on a thread of `scope`.
    pub(super) fn start<'s, 'e>(
        scope: &'s std::thread::Scope<'s, 'e>,
        log: LogInput,
        names: &'e FieldNames,
        bytes: &Arc<AtomicU64>,
    ) -> Result<Self, ReplayError> {
        let (sender, blocks) = sync_channel(MAX_QUEUED_BLOCKS);
        let (spare, used) = sync_channel(MAX_QUEUED_BLOCKS + 2);
        let (name, format) = (log.name.clone(), log.format.unwrap_or(LogFormat::Json));
        let failed = |error| ReplayError::Log(name.clone(), error);
        let reader = log.into_blocks(bytes).map_err(failed)?;
        let parse = move || parse_blocks(reader, LineParser::new(format, names), &sender, &used);
        std::thread::Builder::new()
            .name("replay-log".to_owned())
            .spawn_scoped(scope, parse)
            .map_err(failed)?;
        Ok(Self { blocks, spare })
    }

    /// Returns the next block, waiting for it; `None` at the end.
    ///
    /// # Errors
    /// Why the log cannot be read beyond the blocks so far.
    pub(super) fn next_block(&self) -> io::Result<Option<ParsedBlock>> {
        self.blocks.recv().map_or(Ok(None), |block| block.map(Some))
    }

    /// Returns the memory of a block to be used again.
    pub(super) fn recycle(&self, block: ParsedBlock) {
        let _ = self.spare.try_send(block);
    }
}

fn parse_blocks(
    mut reader: BlockReader,
    mut parser: LineParser<'_>,
    sender: &SyncSender<io::Result<ParsedBlock>>,
    spare: &Receiver<ParsedBlock>,
) {
    let (mut line_number, mut times) = (0, TimeCheck::default());
    loop {
        let mut block = spare.try_recv().unwrap_or_default();
        block.clear();
        let end = match reader.read(&mut block.data) {
            Ok(None) => Some(None),
            Ok(Some(long_lines)) => {
                parse_block(&mut block, &mut parser, &mut line_number, long_lines);
                times.add(block);
                None
            }
            Err(error) => Some(Some(error)),
        };
        while let Some(checked) = times.next_checked(end.is_some()) {
            if sender.send(Ok(checked)).is_err() {
                return;
            }
        }
        if let Some(error) = end {
            if let Some(error) = error {
                let _ = sender.send(Err(error));
            }
            return;
        }
    }
}

/// Parses the lines of a block, before which `long_lines` were too long.
pub(super) fn parse_block(
    block: &mut ParsedBlock,
    parser: &mut LineParser<'_>,
    line_number: &mut u64,
    long_lines: u64,
) {
    let ParsedBlock { data, requests, lines, values, counts, examples, .. } = block;
    for _ in 0..long_lines {
        *line_number += 1;
        counts.unreadable += 1;
        let text = format!("(longer than {} KiB)", MAX_LINE_LENGTH >> 10);
        examples.push(UnreadableLine { line: *line_number, text });
    }
    counts.lines += long_lines;
    block.first_line = *line_number + 1;
    let mut at = 0;
    while let Some(line) = next_line(data, &mut at) {
        *line_number += 1;
        if line.is_empty() {
            continue;
        }
        counts.lines += 1;
        requests.push(LoggedRequest::EMPTY);
        let parsed = match requests.last_mut().filter(|_| line.len() <= MAX_LINE_LENGTH) {
            Some(request) => parser.parse_into(request, data, &line, values),
            None => Err(LineFault::Unreadable),
        };
        if parsed.is_err() {
            requests.truncate(lines.len());
        }
        match parsed {
            Ok(()) => {
                let number = (*line_number - block.first_line) as u32;
                lines.push(LinePlace { number, start: line.start as u32 });
            }
            Err(LineFault::NoRequest) => counts.no_request += 1,
            Err(LineFault::Unreadable) => {
                counts.unreadable += 1;
                if examples.len() < MAX_EXAMPLES {
                    examples.push(UnreadableLine::new(*line_number, &data[line]));
                }
            }
        }
    }
    block.sort();
}
