//! Replacements that fail, or are cut short.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::config;
use crate::support::replacement::signal;
use crate::support::{Client, Weir, get, wait};
use crate::unix_sockets::get_raw;

const LIMITED: &str = "rules: [{ name: all, match: { method: GET }, limit: 5/h, algorithm: fixed_window }]";

#[test]
fn new_process_that_rejects_its_configuration_changes_nothing() {
    let weir = Weir::start(&config("echo", LIMITED));
    let address = weir.address();
    let mut client = Client::connect(address);
    assert_eq!(client.get("/").status, 200);
    weir.assert_reload_rejected("listeners: nowhere\n");
    for _ in 0..2 {
        let failures = || {
            let log = weir.log();
            log.iter().filter(|line| line.contains("this process is not replaced, and goes on")).count()
        };
        let before = failures();
        signal(weir.pid(), "USR2");
        wait::until_true("the failure", || failures() > before);
        assert_eq!(client.get("/").status, 200);
    }
    assert!(weir.has_logged("the new process has ended: exit status: 2"));
    assert_eq!((client.get("/").status, client.get("/").status, get(address, "/").status), (200, 200, 429));
}

/// Returns a copy of the binary that the test may replace.
fn copied_binary(directory: &std::path::Path) -> std::path::PathBuf {
    let binary = directory.join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &binary).unwrap();
    binary
}

#[test]
fn binary_at_the_path_is_started_and_one_that_fails_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (binary, file) = (copied_binary(directory.path()), directory.path().join("weir.yaml"));
    fs::write(&file, config("echo", LIMITED)).unwrap();
    let weir = Weir::start_binary(&binary, &file);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    let kept = directory.path().join("kept");
    fs::rename(&binary, &kept).unwrap();
    for script in ["#!/bin/sh\nexit 7\n", "not a program"] {
        fs::write(&binary, script).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let failures = || {
            let log = weir.log();
            log.iter().filter(|line| line.contains("this process is not replaced, and goes on")).count()
        };
        let before = failures();
        signal(weir.pid(), "USR2");
        wait::until_true("the failure", || failures() > before);
        assert_eq!(client.get("/").status, 200);
    }
    fs::rename(&kept, &binary).unwrap();
    weir.replace();
    assert_eq!((client.get("/").status, client.get("/").status, client.get("/").status), (200, 200, 429));
}

#[test]
fn file_of_a_unix_socket_stays_until_the_last_process_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let yaml = |rest: &str| {
        let listeners = format!("listeners: [{{ address: \"unix:{}\", name: unix }}, ", path.display());
        config("echo", rest).replace("listeners: [", &listeners)
    };
    let mut weir = Weir::start(&yaml("rules: []"));
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("rules: []\nrls: {{ address: \"{}\" }}", occupied.local_addr().unwrap());
    weir.assert_reload_rejected(&yaml(&taken));
    assert!(get_raw(&path).unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    weir.reload_at_start(&yaml("rules: []").replace("workers: 2", "workers: 3"));
    assert!(get_raw(&path).unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    weir.until_old_has_ended();
    assert!(get_raw(&path).unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    weir.terminate();
    assert!(weir.wait_exit().success());
    assert!(!path.exists());
}

/// Whatever process is killed, and whenever: one of them serves, and none of the units that were used comes back.
#[test]
fn kill_at_any_moment_leaves_a_process_that_serves() {
    let random = &mut fastrand::Rng::new();
    for round in 0..12 {
        let mut weir = Weir::start(&config("echo", LIMITED));
        let address = weir.address();
        for _ in 0..5 {
            assert_eq!(get(address, "/").status, 200);
        }
        // Keeps the old process until the end.
        let busy = Client::connect(address);
        busy.send("POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
        let old = weir.pid();
        signal(old, "USR2");
        let kills_old = round % 2 == 0;
        let new = wait::until("the new process", || child_of(old));
        wait::pause(Duration::from_millis(random.u64(0..60)));
        if kills_old {
            weir.kill();
        } else {
            signal(new, "KILL");
        }
        let response = wait::until("a process that serves", || served(weir.addresses_of("main")));
        if kills_old && response.starts_with("HTTP/1.1 200") {
            // A process whose predecessor was killed before it had the sockets and the counters has those of its own start.
            wait::until_true("the reason", || weir.has_logged("starting without its counters"));
        } else {
            assert!(response.starts_with("HTTP/1.1 429"), "round {round}: {response}");
        }
        if kills_old {
            signal(new, "KILL");
        }
    }
}

/// Returns the response of the last of these addresses that has one.
fn served(addresses: Vec<SocketAddr>) -> Option<String> {
    addresses.into_iter().rev().find_map(|address| {
        let mut client = TcpStream::connect(address).ok()?;
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").ok()?;
        client.set_read_timeout(Some(wait::DEADLINE)).ok()?;
        let mut response = String::new();
        client.read_to_string(&mut response).ok()?;
        (!response.is_empty()).then_some(response)
    })
}

/// Returns a child of the process.
fn child_of(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let children = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    children
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .next()?
        .parse()
        .ok()
}
