use http::StatusCode;
use http::header::HeaderValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const MAX_BODY: usize = 100;

async fn start_server() -> (TcpListener, HttpClient) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = HttpUrl::new(false, "127.0.0.1".into(), listener.local_addr().unwrap().port(), "/a?b");
    let headers = [(http::header::AUTHORIZATION, HeaderValue::from_static("secret"))].into_iter().collect();
    let client = HttpClient::new(HttpTarget { url, tls: None, headers }, MAX_BODY).unwrap();
    (listener, client)
}

/// Reads a request and sends a response; returns the head of the request.
async fn respond(stream: &mut TcpStream, response: &str) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(response.as_bytes()).await.unwrap();
    String::from_utf8(head).unwrap()
}

async fn get(client: &mut HttpClient) -> Result<Bytes, HttpClientError> {
    let response = client.send(client.request(Method::GET).body(Full::default()).unwrap()).await?;
    assert_eq!(response.status(), StatusCode::OK);
    read_body(response.into_body(), MAX_BODY).await
}

fn response(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn requests_share_a_connection_until_the_server_has_closed_it() {
    let (listener, mut client) = start_server().await;
    let serve = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        let heads = [respond(&mut first, &response("1")).await, respond(&mut first, &response("2")).await];
        // Closed without a response to the third request.
        respond(&mut first, "").await;
        drop(first);
        respond(&mut listener.accept().await.unwrap().0, &response("3")).await;
        heads
    });
    for expected in ["1", "2", "3"] {
        assert_eq!(get(&mut client).await.unwrap(), expected);
    }
    let [first, second] = serve.await.unwrap();
    assert_eq!(first, second);
    assert!(first.starts_with("GET /a?b HTTP/1.1\r\nhost: 127.0.0.1:"), "{first}");
    assert!(first.contains(&format!("user-agent: {PRODUCT}\r\n")), "{first}");
    assert!(first.contains("authorization: secret\r\n") && !first.contains("content-length"), "{first}");
}

#[tokio::test]
async fn failure_of_a_new_connection_is_an_error_with_its_cause() {
    let (listener, mut client) = start_server().await;
    let serve =
        tokio::spawn(async move { respond(&mut listener.accept().await.unwrap().0, "no HTTP\r\n").await });
    let error = get(&mut client).await.unwrap_err();
    assert!(matches!(error, HttpClientError::Http(_)), "{error:?}");
    serve.await.unwrap();
    let error = get(&mut client).await.unwrap_err();
    assert!(matches!(error, HttpClientError::Connect(_)), "{error:?}");
    assert!(error.to_string().starts_with("Connection refused"), "{error}");
}

#[tokio::test]
async fn body_and_interim_responses_are_bounded() {
    let (listener, mut client) = start_server().await;
    let serve = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        respond(&mut stream, &response(&"x".repeat(MAX_BODY + 1))).await;
        let (mut stream, _) = listener.accept().await.unwrap();
        respond(&mut stream, &"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(MAX_BODY)).await;
        stream
    });
    let error = get(&mut client).await.unwrap_err();
    assert!(matches!(error, HttpClientError::TooLong), "{error:?}");
    client.close();
    let error = get(&mut client).await.unwrap_err().to_string();
    assert!(error.ends_with(": the response is too large"), "{error}");
    drop(serve.await.unwrap());
}
