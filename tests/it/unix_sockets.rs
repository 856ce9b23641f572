//! Listeners on Unix sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::support::{Origin, Weir, config_with, run_concurrently, wait};

fn config_listening_at(path: &Path, origin: &Origin, rest: &str) -> String {
    let listener = format!("{{ address: \"unix:{}\", name: inbound }}", path.display());
    config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), rest)
}

/// Sends a request to the socket, and returns the response.
pub(crate) fn get_raw(path: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(wait::DEADLINE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn several_workers_share_a_socket_and_its_file_is_removed_on_exit() {
    let directory = tempfile::tempdir().unwrap();
    let (path, origin) = (directory.path().join("weir.sock"), Origin::hello());
    let mut weir = Weir::start(&config_listening_at(&path, &origin, "workers: 3\n"));
    for answer in run_concurrently(16, |_| get_raw(&path).unwrap()) {
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    let seen = origin.requests();
    assert!(seen.iter().all(|seen| seen.head.get("x-forwarded-for") == Some("127.0.0.1")));
    let listeners = weir.admin_get("/listeners").body.text();
    assert_eq!(listeners, format!("inbound::{}\n", path.display()));
    weir.terminate();
    assert!(weir.wait_exit().success());
    assert!(!path.exists());
}

#[test]
fn stale_socket_file_is_replaced_and_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (path, origin) = (directory.path().join("weir.sock"), Origin::hello());
    drop(UnixListener::bind(&path).unwrap());
    let yaml = config_listening_at(&path, &origin, "");
    let _weir = Weir::start(&yaml);
    assert!(get_raw(&path).unwrap().starts_with("HTTP/1.1 200"));
    let file = directory.path().join("second.yaml");
    std::fs::write(&file, &yaml).unwrap();
    let second = crate::support::weir::run(["run", "-c", file.to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another process is listening on the path"), "{said}");
    assert!(get_raw(&path).unwrap().starts_with("HTTP/1.1 200"), "the first process still serves the socket");
}

#[test]
fn all_connections_of_a_socket_count_as_one_client() {
    let directory = tempfile::tempdir().unwrap();
    let (path, origin) = (directory.path().join("weir.sock"), Origin::hello());
    let rules = "rules: [{ name: a, key: client_ip, limit: 2/h }]\n";
    let _weir = Weir::start(&config_listening_at(&path, &origin, rules));
    let statuses: Vec<String> = (0..3).map(|_| get_raw(&path).unwrap()[9..12].to_owned()).collect();
    assert_eq!(statuses, ["200", "200", "429"]);
}
