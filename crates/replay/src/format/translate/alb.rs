//! Access logs of AWS load balancers: the Application Load Balancer, and the Classic Load Balancer.
//!
//! ```text
//! TYPE TIME ELB CLIENT:PORT TARGET:PORT T T T STATUS TARGET-STATUS RECEIVED SENT "REQUEST" "USER-AGENT" CIPHER PROTOCOL
//!   TARGET-GROUP "TRACE" "DOMAIN" "CERTIFICATE" PRIORITY CREATION-TIME ...
//! TIME ELB CLIENT:PORT BACKEND:PORT T T T STATUS BACKEND-STATUS RECEIVED SENT "REQUEST" "USER-AGENT" CIPHER PROTOCOL
//! ```

use super::record::{RecordWriter, words};
use crate::format::scan::address;

const TYPES: [&[u8]; 6] = [b"http", b"https", b"h2", b"grpcs", b"ws", b"wss"];

/// Translates a line; returns whether it is one of this format.
pub(super) fn translate(line: &[u8], record: &mut RecordWriter<'_>) -> bool {
    let mut fields: [&[u8]; 23] = [b"-"; 23];
    let is_application =
        TYPES.iter().any(|kind| line.strip_prefix(*kind).is_some_and(|rest| rest.starts_with(b" ")));
    // A classic balancer's line has no type.
    let first = usize::from(!is_application);
    if !is_application && !line.first().is_some_and(u8::is_ascii_digit) {
        return false;
    }
    let mut count = first;
    for (field, word) in fields[first..].iter_mut().zip(words(line)) {
        (*field, count) = (word, count + 1);
    }
    let [_, time, _, client, _, _, _, _, status, _, received, sent, request, agent, ..] = fields;
    let is_time = time.get(10) == Some(&b'T') && time.len() >= 20;
    if count < 14 || !is_time || address(client).is_none() || !request.contains(&b' ') {
        return false;
    }
    let created = fields[21];
    if created.get(10) == Some(&b'T') {
        record.text("start_time", created);
    }
    record.text("time", time);
    record.text("remote_addr", client);
    record.text("status", status);
    record.text("bytes_received", received);
    record.text("bytes_sent", sent);
    record.text("user_agent", agent);
    record.text("request", request.trim_ascii());
    true
}
