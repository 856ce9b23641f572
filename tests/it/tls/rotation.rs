//! Certificates that are replaced while clients connect and stay connected.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::TlsProxy;
use crate::support::{Weir, wait};

type TlsClientStream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

const ROTATIONS: usize = 50;

fn connect(to: SocketAddr, client: &Arc<ClientConfig>) -> io::Result<TlsClientStream> {
    let tcp = TcpStream::connect(to)?;
    tcp.set_read_timeout(Some(wait::DEADLINE))?;
    let name = ServerName::try_from("app.example").map_err(io::Error::other)?;
    let session = ClientConnection::new(Arc::clone(client), name).map_err(io::Error::other)?;
    Ok(BufReader::new(StreamOwned::new(session, tcp)))
}

fn send_get(stream: &mut TlsClientStream) -> io::Result<()> {
    stream.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: app.example\r\n\r\n")?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(line));
    }
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line)?;
    }
    let mut body = [0; 5];
    stream.read_exact(&mut body)
}

/// Returns the serial number of the certificate that new clients get.
fn certificate_serial(weir: &Weir) -> String {
    weir.admin_json("/certs")["certificates"][0]["cert_chain"][0]["serial_number"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn rotation_under_load_fails_no_request_and_closes_no_connection() {
    let secured = TlsProxy::start("", "workers: 2\n");
    let (address, client) = (secured.weir.address(), secured.authority.client(None));
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = |stays: bool| -> io::Result<()> {
        let mut stream = connect(address, &client)?;
        while !done.load(Ordering::SeqCst) {
            if !stays {
                stream = connect(address, &client)?;
            }
            send_get(&mut stream)?;
            served.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = [true, true, false, false].map(|stays| scope.spawn(move || load(stays))).into();
        for _ in 0..ROTATIONS {
            let (before, so_far) = (certificate_serial(&secured.weir), served.load(Ordering::SeqCst));
            secured.authority.issue("app.example", secured.directory.path(), "app");
            wait::until_true("the new certificate", || certificate_serial(&secured.weir) != before);
            wait::until_true("load", || served.load(Ordering::SeqCst) > so_far);
        }
        done.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().unwrap().unwrap();
        }
    });
    let applied = || secured.weir.metric("weir_config_reloads_total", &[("outcome", "applied")]);
    wait::until_true("the reloads to be counted", || applied() >= ROTATIONS as f64);
}

#[test]
fn damaged_certificate_or_key_is_rejected_and_reported() {
    let secured = TlsProxy::start("", "");
    let (address, client) = (secured.weir.address(), secured.authority.client(None));
    let ask_anew = || send_get(&mut connect(address, &client).unwrap()).unwrap();
    let before = certificate_serial(&secured.weir);
    let key = secured.directory.path().join("app.key");
    for (damage, told) in [
        (
            &fs::read_to_string(secured.directory.path().join("wild.key")).unwrap()[..],
            "does not match the certificate",
        ),
        (
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "is encrypted",
        ),
        ("", "no PEM private key"),
    ] {
        let rejected = secured.weir.rejected_reloads();
        fs::write(&key, damage).unwrap();
        wait::until_true("the rejection", || secured.weir.rejected_reloads() > rejected);
        let problems =
            secured.weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
        assert!(problems.contains(told) && problems.contains("tls.key"), "{problems}");
        assert_eq!(certificate_serial(&secured.weir), before);
        ask_anew();
    }
    secured.authority.issue("app.example", secured.directory.path(), "app");
    wait::until_true("the valid pair", || certificate_serial(&secured.weir) != before);
    ask_anew();
}
