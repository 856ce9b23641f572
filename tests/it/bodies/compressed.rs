//! Fields of compressed bodies.

use super::{RULES, json, statuses};
use crate::support::{Origin, Request, Weir, config, gzip};

const CHAT: &[u8] = br#"{"model":"gpt-4","user":"a"}"#;

/// Encodes a content.
type Encode = fn(&[u8]) -> Vec<u8>;

/// Encodes a content of less than 64 KiB as one block without compression (RFC 7932, section 9).
fn brotli(content: &[u8]) -> Vec<u8> {
    let header = (u32::try_from(content.len()).unwrap() - 1) << 4 | 1 << 20;
    [&header.to_le_bytes()[..3], content, &[3]].concat()
}

/// Encodes a content of less than 256 bytes as one block without compression (RFC 8878, section 3.1.1).
fn zstd(content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    let block = u32::from(length) << 3 | 1;
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, length][..], &block.to_le_bytes()[..3], content].concat()
}

/// Returns a chat in each coding, with this behind it.
fn chats(behind: impl Fn(Encode) -> Vec<u8>) -> [(&'static str, Request); 3] {
    let codings: [(&str, Encode); 3] = [("gzip", |content| gzip(content)), ("br", brotli), ("zstd", zstd)];
    codings.map(|(coding, encode)| {
        let body = [encode(CHAT), behind(encode)].concat();
        (coding, json("/chat", body).header("content-encoding", coding))
    })
}

#[test]
fn bodies_of_all_codings_are_read() {
    for (coding, chat) in chats(|_| Vec::new()) {
        let origin = Origin::hello();
        let weir = Weir::start(&config(origin.address(), RULES));
        assert_eq!(statuses(&weir, [&chat, &chat, &chat]), [200, 200, 429], "{coding}");
        let received = origin.last_request();
        assert_eq!(received.head.get("content-encoding"), Some(coding));
        assert!(chat.to_bytes().ends_with(&received.body.bytes), "{coding}: as it came");
    }
}

#[test]
fn what_follows_the_content_is_unreadable() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    for (coding, chat) in chats(|encode| encode(b" ")).into_iter().chain(chats(|_| vec![0])) {
        assert_eq!(statuses(&weir, [&chat]), [400], "{coding}");
    }
    assert!(origin.requests().is_empty());
}

#[test]
fn compressed_bodies_are_read() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    let compressed = |text: &[u8]| json("/chat", gzip(text)).header("content-encoding", "gzip");
    let chat = compressed(br#"{"model":"gpt-4","user":"a"}"#);
    assert_eq!(statuses(&weir, [&chat, &chat, &chat]), [200, 200, 429]);
    assert_eq!(origin.last_request().head.get("content-encoding"), Some("gzip"));
    let bomb = compressed(
        &[b"{\"model\":\"gpt-4\",\"user\":\"a\",\"x\":\"".as_slice(), &[b'x'; 1_000_000], b"\"}"].concat(),
    );
    assert_eq!(statuses(&weir, [&bomb]), [400], "longer than the maximum once decoded");
}
