//! Certificates and authorities that are replaced while requests are sent to the upstream.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::{H1, TlsUpstream};
use crate::support::pki::Authority;
use crate::support::{Client, Origin, Request, Weir, wait};

const CLIENT_TLS: &str = "ca: DIR/ca.crt, certificate: DIR/weir.crt, key: DIR/weir.key";
const ROTATIONS: usize = 10;

/// Sends requests continuously on four connections while `change` runs.
fn under_load(weir: &Weir, change: impl FnOnce(&dyn Fn())) {
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = || {
        let mut client = Client::connect(weir.address());
        while !done.load(Ordering::SeqCst) {
            // A POST, so that no retry hides a failure.
            let answer = client.try_fetch(&Request::post("/", "x")).map_err(|error| error.to_string())?;
            if answer.status != 200 {
                return Err(answer.status.to_string());
            }
            served.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(load)).collect();
        change(&|| {
            let before = served.load(Ordering::SeqCst);
            wait::until_true("load", || served.load(Ordering::SeqCst) > before);
        });
        done.store(true, Ordering::SeqCst);
        for client in clients {
            assert_eq!(client.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn client_certificate_rotation_fails_no_request() {
    let origin = Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, true);
    let issue = || beyond.authority.issue("weir.example", beyond.directory.path(), "weir");
    issue();
    let weir = beyond.start_proxy("localhost", CLIENT_TLS, "", "workers: 2\n");
    let last = || beyond.front.handshakes().last().and_then(|hello| hello.certificate.clone());
    under_load(&weir, |load| {
        load();
        for _ in 0..ROTATIONS {
            let before = last();
            issue();
            wait::until_true("the new certificate", || last() != before);
            load();
        }
    });
    assert!(beyond.front.handshakes().len() < 200, "connections are reused between rotations");
}

#[test]
fn ca_rotation_fails_no_request_and_distrusts_the_old_ca() {
    let origin = Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", "ca: DIR/ca.crt", "", "");
    let file = beyond.directory.path().join("ca.crt");
    let next = Authority::new("next");
    let replace = |text: &str| {
        let before = weir.generation();
        std::fs::write(file.with_extension("next"), text).unwrap();
        std::fs::rename(file.with_extension("next"), &file).unwrap();
        weir.until_reloaded(before);
    };
    let old = std::fs::read_to_string(&file).unwrap();
    let new = std::fs::read_to_string(next.write(&beyond.directory.path().join("new.crt"))).unwrap();
    under_load(&weir, |load| {
        load();
        // The usual rotation: trust both authorities, change the service, then trust only the new one.
        replace(&format!("{old}{new}"));
        load();
        beyond.front.replace(next.server("localhost", H1, false));
        replace(&new);
        load();
    });
    beyond.front.replace(beyond.authority.server("localhost", H1, false));
    replace(&format!("{new}{}", std::fs::read_to_string(beyond.directory.path().join("new.crt")).unwrap()));
    wait::until_true("the rejection of the old certificate", || {
        Client::connect(weir.address()).fetch(&Request::post("/", "x")).status == 503
    });
}
