use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Serves one connection with these bytes, and returns its request and the result of the client.
async fn exchange_with<T, F: Future<Output = T>>(
    reply: &'static str,
    token: Option<&str>,
    act: impl FnOnce(AdminClient) -> F,
) -> (String, T) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(reply.as_bytes()).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let result = act(AdminClient::new(&address, token).unwrap()).await;
    (serving.await.unwrap(), result)
}

#[tokio::test]
async fn body_of_a_successful_response_is_returned() {
    let reply = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let get = |client: AdminClient| async move { client.get("/limits?x=1").await };
    let (head, body) = exchange_with(reply, Some("s3cret"), get).await;
    let response = body.unwrap();
    assert_eq!((response.status, response.body.as_slice()), (200, &b"ok"[..]));
    assert!(head.starts_with("GET /limits?x=1 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("authorization: Bearer s3cret\r\n") && head.contains("host: 127.0.0.1:"), "{head}");
}

#[tokio::test]
async fn token_is_not_sent_without_one() {
    let get = |client: AdminClient| async move { client.get("/").await };
    let (head, _) = exchange_with("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", None, get).await;
    assert!(!head.contains("authorization"), "{head}");
}

#[tokio::test]
async fn status_and_message_of_a_failure_are_reported_without_control_characters() {
    let reply = "HTTP/1.1 503 Unavailable\r\ncontent-length: 13\r\n\r\ntoo \x1b[2Jmany\n\n";
    let open = |client: AdminClient| async move { client.events().await.map(drop) };
    let error = exchange_with(reply, None, open).await.1.unwrap_err().to_string();
    assert_eq!(error, "the admin port responds 503 Service Unavailable: too [2Jmany");
    let reply = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
    let error = exchange_with(reply, None, open).await.1.unwrap_err();
    assert!(matches!(error, AdminClientError::Unauthorized), "{error}");
    let get = |client: AdminClient| async move { client.get("/limits").await };
    assert_eq!(exchange_with(reply, None, get).await.1.unwrap().status, 401);
}

#[tokio::test]
async fn unreachable_port_is_named() {
    let client = AdminClient::new("127.0.0.1:1", None).unwrap();
    let error = client.get("/").await.unwrap_err().to_string();
    assert!(error.starts_with("cannot reach the admin port at 127.0.0.1:1: "), "{error}");
}

#[tokio::test]
async fn snapshots_arrive_until_the_server_ends_the_stream() {
    let reply = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
                 event: snapshot\ndata: 1\n\nevent: snapshot\ndata: 2\n\n";
    let read = |client: AdminClient| async move {
        let mut events = client.events().await.unwrap();
        [
            events.next_snapshot().await.unwrap(),
            events.next_snapshot().await.unwrap(),
            events.next_snapshot().await.unwrap(),
        ]
    };
    let (_, read) = exchange_with(reply, None, read).await;
    assert_eq!(read, [Some("1".to_owned()), Some("2".to_owned()), None]);
}

#[test]
fn token_with_line_breaks_is_invalid() {
    assert!(matches!(AdminClient::new("127.0.0.1:9901", Some("a\r\nb: c")), Err(AdminClientError::Token)));
}
