//! The terminal: its size, its keys, and its state, which is restored in any case.

use std::io::{self, IsTerminal as _, Write as _};
use std::thread;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::line::{ColorChoice, Line};
use super::screen::ScreenSize;

/// Size of a terminal that does not state one.
const DEFAULT_SIZE: ScreenSize = ScreenSize { columns: 80, rows: 24 };

/// Bounds of the size that is drawn.
const MAX_COLUMNS: usize = 500;
const MAX_ROWS: usize = 500;

/// Alternate screen on and off, with the cursor hidden and shown.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Cursor to the upper left corner; the rest of the line; the rest of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Ctrl-C, which arrives as a byte because signals by keys are switched off.
const CTRL_C: u8 = 3;

/// Lines of a page, for the keys that scroll by pages.
const PAGE_LINES: isize = 10;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// End.
    Quit,
    /// Scroll by some lines, up if negative.
    Scroll(isize),
    /// Nothing.
    Other,
}

/// Returns whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The terminal while it shows the view. Dropping it restores what was there before.
#[derive(Debug)]
pub(super) struct Terminal {
    /// Keys from standard input, if it is a terminal.
    keys: Option<Receiver<Key>>,
    /// The settings of standard input before.
    saved: Option<Termios>,
}

impl Terminal {
    /// Switches to the alternate screen. Keys arrive one by one and are not shown.
    pub(super) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let saved = tcgetattr(&stdin).ok();
        // Dropped on an error below, which restores the settings.
        let mut terminal = Self { keys: None, saved };
        if let Some(saved) = &terminal.saved {
            let mut settings = saved.clone();
            settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(&stdin, OptionalActions::Flush, &settings)?;
            let (sender, keys) = channel(1);
            // It ends with the process: a read from a terminal cannot be interrupted.
            thread::Builder::new().name("keyboard".to_owned()).spawn(move || read_keys(&sender))?;
            terminal.keys = Some(keys);
        }
        write(ENTER)?;
        Ok(terminal)
    }

    #[expect(clippy::unused_self, reason = "only a terminal in use has a size that matters")]
    pub(super) fn size(&self) -> ScreenSize {
        let Ok(size) = tcgetwinsize(io::stdout()) else { return DEFAULT_SIZE };
        let within =
            |length: u16, default, max| if length == 0 { default } else { usize::from(length).min(max) };
        ScreenSize {
            columns: within(size.ws_col, DEFAULT_SIZE.columns, MAX_COLUMNS),
            rows: within(size.ws_row, DEFAULT_SIZE.rows, MAX_ROWS),
        }
    }

    /// Shows lines in place of those before, in one write so that it does not flicker.
    #[expect(clippy::unused_self, reason = "only a terminal in use is drawn on")]
    pub(super) fn show(&mut self, lines: &[Line], columns: usize, colors: ColorChoice) -> io::Result<()> {
        let mut screen = HOME.to_owned();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                screen.push_str("\r\n");
            }
            screen.push_str(&line.to_terminal(columns, colors));
            screen.push_str(CLEAR_LINE);
        }
        screen.push_str(CLEAR_BELOW);
        write(&screen)
    }

    /// Waits for the next key. Safe to cancel. Without a keyboard it waits for ever.
    pub(super) async fn next_key(&mut self) -> Key {
        match &mut self.keys {
            Some(keys) => keys.recv().await.unwrap_or(Key::Quit),
            None => std::future::pending().await,
        }
    }
}

/// Reads keys until the terminal is closed.
fn read_keys(keys: &Sender<Key>) {
    let mut bytes = [0_u8; 16];
    while let Ok(length @ 1..) = rustix::io::read(io::stdin(), &mut bytes) {
        for key in parse_keys(&bytes[..length]) {
            if keys.blocking_send(key).is_err() {
                return;
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        if let Some(saved) = &self.saved {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, saved);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns the meaning of the bytes of one read, which hold one key or several.
fn parse_keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (key, behind) = rest.split_at(key_length(rest));
        keys.push(parse_key(key));
        rest = behind;
    }
    keys
}

/// Returns the number of bytes of the first key: one, or a control sequence up to its final byte (ECMA-48).
fn key_length(bytes: &[u8]) -> usize {
    let is_final = |byte: &u8| (0x40..=0x7e).contains(byte);
    match bytes {
        [0x1b, b'[', behind @ ..] => {
            behind.iter().position(is_final).map_or(bytes.len(), |at| at.saturating_add(3))
        }
        [0x1b, b'O', _, ..] => 3,
        _ => 1,
    }
}

fn parse_key(bytes: &[u8]) -> Key {
    match bytes {
        [b'q' | b'Q' | CTRL_C] => Key::Quit,
        [b'k'] | [0x1b, b'[' | b'O', b'A'] => Key::Scroll(-1),
        [b'j'] | [0x1b, b'[' | b'O', b'B'] => Key::Scroll(1),
        [0x1b, b'[', b'5', b'~'] => Key::Scroll(-PAGE_LINES),
        [b' '] | [0x1b, b'[', b'6', b'~'] => Key::Scroll(PAGE_LINES),
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_scroll_and_quit() {
        for (bytes, expected) in [
            (&b"q"[..], Key::Quit),
            (b"\x03", Key::Quit),
            (b"\x1b[A", Key::Scroll(-1)),
            (b"\x1bOB", Key::Scroll(1)),
            (b"\x1b[6~", Key::Scroll(PAGE_LINES)),
            (b"j", Key::Scroll(1)),
            (b"\x1b", Key::Other),
            (b"x", Key::Other),
        ] {
            assert_eq!(parse_keys(bytes), [expected], "{bytes:?}");
        }
    }

    #[test]
    fn keys_of_one_read_are_all_used() {
        use Key::{Quit, Scroll};
        assert_eq!(parse_keys(b"jq"), [Scroll(1), Quit]);
        assert_eq!(parse_keys(b"\x1b[A\x1b[6~kq"), [Scroll(-1), Scroll(PAGE_LINES), Scroll(-1), Quit]);
        assert_eq!(parse_keys(b"\x1bOBq"), [Scroll(1), Quit]);
        assert_eq!(parse_keys(b"\x1b["), [Key::Other]);
    }
}
