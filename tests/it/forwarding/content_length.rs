//! Content-Length: Weir writes the number that it has parsed, in both directions and over both protocols.

use bytes::Bytes;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::wire::Framing;
use crate::support::{Client, LISTENER, Origin, Request, Weir, config, config_with, get};

/// Returns an HTTP/1.1 upstream whose responses have these headers and this content.
fn upstream_with_headers(fields: &'static str, content: &'static str) -> Origin {
    Origin::responding_with(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{content}"))
}

#[test]
fn response_content_length_is_normalised() {
    let spellings =
        ["content-length: 0005", "content-length: 5, 05", "content-length: 5\r\ncontent-length: 005"];
    for fields in spellings {
        let origin = upstream_with_headers(fields, "hello");
        let weir = Weir::start(&config(origin.address(), ""));
        let response = get(weir.address(), "/");
        assert_eq!(
            (response.head.get_all("content-length"), response.body.text().as_str()),
            (vec!["5"], "hello"),
            "{fields}"
        );
        let mut client = H2Client::connect(weir.address());
        let response = client.fetch(client.request("GET", "/"));
        assert_eq!(response.headers.get_all("content-length").iter().count(), 1, "{fields}");
        assert_eq!(
            (response.header("content-length"), response.body.as_slice()),
            ("5", &b"hello"[..]),
            "{fields}"
        );
    }
}

#[test]
fn head_response_content_length_is_normalised() {
    let origin = upstream_with_headers("content-length: 0005", "");
    let weir = Weir::start(&config(origin.address(), ""));
    let response = Client::connect(weir.address()).fetch(&Request::new("HEAD", "/"));
    assert_eq!(response.head.get_all("content-length"), ["5"]);
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.request("HEAD", "/")).header("content-length"), "5");
}

#[test]
fn invalid_response_content_length_is_502() {
    let wrong = [
        "",
        "+5",
        "-5",
        "0x5",
        "5 5",
        "5,6",
        "9223372036854775808",
        "18446744073709551615",
        "99999999999999999999",
    ];
    for value in wrong {
        for method in ["GET", "HEAD"] {
            let origin =
                Origin::responding_with(format!("HTTP/1.1 200 OK\r\ncontent-length: {value}\r\n\r\nhello"));
            let weir = Weir::start(&config(origin.address(), ""));
            assert_eq!(
                Client::connect(weir.address()).fetch(&Request::new(method, "/")).status,
                502,
                "{method} {value:?}"
            );
            let mut client = H2Client::connect(weir.address());
            assert_eq!(
                client.fetch(client.request(method, "/")).status,
                502,
                "{method} {value:?} over HTTP/2"
            );
        }
    }
}

#[test]
fn http2_upstream_content_length_is_validated() {
    for (value, status) in [("5", 200), ("005", 200), ("9223372036854775808", 502), ("", 502)] {
        let origin = H2Origin::start(None, move |_, mut respond| async move {
            let response = http::Response::builder().header("content-length", value).body(()).unwrap();
            respond.send_response(response, false)?.send_data(Bytes::from_static(b"hello"), true)
        });
        let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
        let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
        let response = get(weir.address(), "/");
        assert_eq!(response.status, status, "{value:?}");
        let mut client = H2Client::connect(weir.address());
        let response = client.fetch(client.request("GET", "/"));
        assert_eq!(response.status, status, "{value:?} over HTTP/2");
        if status == 200 {
            assert_eq!((response.header("content-length"), response.body.as_slice()), ("5", &b"hello"[..]));
        }
    }
}

#[test]
fn content_length_is_removed_from_204() {
    let origin = Origin::responding_with("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n");
    let weir = Weir::start(&config(origin.address(), ""));
    assert_eq!(get(weir.address(), "/").head.get("content-length"), None);
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.request("GET", "/")).headers.get("content-length"), None);
}

#[test]
fn request_content_length_to_an_http2_upstream_is_normalised() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let lengths = request.headers().get_all("content-length").iter();
        let told: Vec<_> = lengths.map(|length| length.to_str().unwrap().to_owned()).collect();
        let mut body = request.into_body();
        while body.data().await.transpose()?.is_some() {}
        let response = http::Response::builder().header("x-told", told.join("|")).body(()).unwrap();
        respond.send_response(response, true).map(drop)
    });
    let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = H2Client::connect(weir.address());
    for values in [&["0005"][..], &["5", "05"]] {
        let request = values
            .iter()
            .fold(client.request("POST", "/"), |request, value| request.header("content-length", *value));
        let (response, mut stream) = client.send_request(request, false);
        stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
        assert_eq!(client.read_response(response).unwrap().header("x-told"), "5", "{values:?}");
        let fields: String = values.iter().map(|value| format!("content-length: {value}\r\n")).collect();
        let mut plain = Client::connect(weir.address());
        plain.send(format!("POST / HTTP/1.1\r\nhost: a.test\r\n{fields}\r\nhello"));
        assert_eq!(plain.read_response("POST").header("x-told"), "5", "{values:?} over HTTP/1.1");
    }
}

#[test]
fn http2_request_content_length_is_validated_and_normalised() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let status = client.fetch(client.request("POST", "/").header("content-length", "")).status;
    assert_eq!((status.as_u16(), origin.requests().len()), (400, 0), "empty length forwarded");
    for (value, sent) in [("00", "0"), ("0", "0")] {
        client.fetch(
            client.request("POST", "/").header("content-length", value).header("content-length", value),
        );
        let head = origin.last_request().head;
        assert_eq!(
            (head.get_all("content-length"), Framing::from_request(&head)),
            (vec![sent], Framing::Length(0))
        );
    }
}
