//! A server that sends replies which were not requested.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use weir_store::redis::CallError;
use weir_store::settings::{SingleServer as One, Topology};
use weir_telemetry::metrics::StoreOutcome;

use crate::caller::{Caller, accept, server_address, settings};
use crate::support::wait;

/// Reads a command, and returns its words.
fn read_command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut line = |prefix: char| {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        Some(line.trim_end().trim_start_matches(prefix).to_owned())
    };
    let words = line('*')?.parse().ok()?;
    // No word of these commands contains a line break.
    (0..words).map(|_| line('$').and_then(|_| line('\0'))).collect()
}

/// Responds to commands until the first script; then sends replies until the connection is closed.
fn serve_and_flood(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(words) = read_command(&mut reader) {
        let is_script = words[0].starts_with("EVAL");
        let reply = match &*words[0] {
            "INFO" => "$12\r\nrun_id:12345\r\n",
            "EVALSHA" => ":1\r\n",
            _ => "+OK\r\n",
        };
        stream.write_all(reply.as_bytes()).unwrap();
        if is_script {
            break;
        }
    }
    let replies = ":7\r\n".repeat(4096);
    while stream.write_all(replies.as_bytes()).is_ok() {}
}

#[test]
fn server_that_floods_with_replies_is_disconnected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server_address(listener.local_addr().unwrap().port());
    let caller = Caller::new(settings(Topology::Single(One { address, db: 0 })));
    let (closed, is_closed) = mpsc::channel();
    // Ends with the test's process.
    std::thread::spawn(move || {
        loop {
            serve_and_flood(accept(&listener));
            if closed.send(()).is_err() {
                break;
            }
        }
    });
    assert_eq!(caller.increment("weir:a"), Ok(1));
    assert!(is_closed.recv_timeout(wait::DEADLINE).is_ok(), "the replies are read without a bound");
    let error = caller.await_error("the reason", |error| matches!(error, CallError::Unrequested(_)));
    assert_eq!(error.outcome(), StoreOutcome::Unrequested);
}
