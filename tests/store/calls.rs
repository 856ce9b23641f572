//! Successful calls: users and passwords, databases, Unix sockets, and scripts by hash or by text.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use weir_store::protocol;
use weir_store::redis::{CallError, Script};
use weir_store::settings::{SingleServer as One, Topology};
use weir_telemetry::metrics::StoreOutcome;

use super::flavour;
use crate::caller::{Caller, credentials, echo, info, run_id_of, settings, single_server, text};
use crate::servers::Server;
use crate::support::wait;

#[test]
fn a_script_is_sent_once_and_then_called_by_its_hash() {
    let server = flavour().start();
    let caller = Caller::new(single_server(&server));
    for expected in 1..=5 {
        assert_eq!(caller.increment("weir:a"), Ok(expected));
    }
    let calls = |name| info(&server, "commandstats", name);
    assert_eq!((calls("cmdstat_eval"), calls("cmdstat_evalsha")), (Some(1), Some(5)));
    assert_eq!(server.cli(&["script", "flush"]), "OK");
    assert_eq!(caller.increment("weir:a"), Ok(6), "the script is sent again to a server that has lost it");
    assert_eq!((calls("cmdstat_eval"), calls("cmdstat_evalsha")), (Some(2), Some(6)));
}

#[test]
fn response_carries_the_run_id_of_the_server() {
    let mut server = flavour().start();
    let caller = Caller::new(single_server(&server));
    let first = caller.run_id("weir:a").unwrap();
    assert_eq!(first, run_id_of(&server));
    server.restart();
    caller.await_success();
    let second = caller.run_id("weir:a").unwrap();
    assert!(second == run_id_of(&server) && second != first);
}

#[test]
fn calls_share_one_connection_and_have_their_own_responses() {
    let server = flavour().start();
    let caller = Caller::new(single_server(&server));
    let echo = echo();
    let begun: Vec<_> = (0..500)
        .map(|number: u32| (number.to_string(), caller.start_call(&echo, "weir:a", &number.to_string())))
        .collect();
    for (argument, called) in begun {
        assert_eq!(text(&called.recv().unwrap().unwrap().0), argument);
    }
    let clients = server.cli(&["client", "list"]);
    assert_eq!(clients.lines().filter(|line| line.contains("name=weir:test")).count(), 1, "{clients}");
}

#[test]
fn password_is_sent_to_the_server() {
    let server = with_password();
    let right = Caller::new(weir_store::settings::StoreSettings {
        credentials: credentials(None, "secret"),
        ..single_server(&server)
    });
    assert_eq!(right.increment("weir:a"), Ok(1));
    for password in [Some("wrong"), None] {
        let mut settings = single_server(&server);
        settings.credentials.password = password.map(Into::into);
        let error = Caller::new(settings).increment("weir:a").unwrap_err();
        let CallError::NotPermitted(reason) = &error else { panic!("{error:?}") };
        assert!(reason.to_lowercase().contains("authentication"), "{reason}");
        assert_eq!(error.outcome(), StoreOutcome::Rejected);
    }
}

#[test]
fn authentication_is_retried_after_a_failure() {
    let server = with_password();
    let mut settings = single_server(&server);
    settings.credentials = credentials(None, "other");
    let caller = Caller::new(settings);
    assert!(matches!(caller.increment("weir:a"), Err(CallError::NotPermitted(_))));
    server.cli(&["config", "set", "requirepass", "other"]);
    caller.await_success();
}

fn with_password() -> Server {
    let options = |_: &Path, port: u16| {
        ["--port", &port.to_string(), "--requirepass", "secret"].map(str::to_owned).to_vec()
    };
    flavour().with_login(options, &["-a", "secret", "--no-auth-warning"])
}

/// Returns the ACL rules of the user in `docs/operations/shared-store.md`.
fn documented_user() -> Vec<String> {
    let page = documented();
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER weir ")).unwrap();
    line.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
}

/// Returns the permissions of all features.
fn documented_permissions() -> Vec<String> {
    let page = documented();
    let lines = page.lines().filter(|line| line.starts_with("ACL SETUSER weir "));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

fn documented() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations/shared-store.md"))
        .unwrap()
}

/// Creates the user `weir` on a server with these ACL rules.
fn set_user(server: &Server, words: &[String]) {
    assert!(["0", "1"].contains(&&*server.cli(&["acl", "deluser", "weir"])));
    // Otherwise EVALSHA would suffice for a cached script.
    assert_eq!(server.cli(&["script", "flush"]), "OK");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(server.cli(&words), "OK");
}

/// Makes the calls that Weir makes.
fn run_scripts(server: &Server) -> Result<(), CallError> {
    let mut settings = single_server(server);
    settings.credentials = credentials(Some("weir"), "secret");
    let caller = Caller::new(settings);
    let scripts = [
        "redis.call('SET', KEYS[1], 1) redis.call('GET', KEYS[1]) redis.call('GETRANGE', KEYS[1], 0, 1) redis.call('DEL', KEYS[1]) return ARGV[1]",
        "redis.call('ZADD', KEYS[1], 1, 'a') redis.call('ZCARD', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 9) return ARGV[1]",
        "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 9) redis.call('TIME') return ARGV[1]",
    ];
    for script in scripts {
        caller.call(&Script::new(script), "weir:1:a", "")?;
    }
    Ok(())
}

#[test]
fn scripts_use_only_documented_commands() {
    let permitted = documented_permissions();
    for script in [
        protocol::SCRIPT,
        protocol::GLOBAL_SCRIPT,
        include_str!("../../crates/store/src/members.lua"),
        include_str!("../../crates/store/src/feedback.lua"),
    ] {
        for call in script.split("redis.call('").skip(1) {
            let (command, _) = call.split_once('\'').unwrap();
            assert!(permitted.contains(&format!("+{}", command.to_lowercase())), "{command}");
        }
    }
}

#[test]
fn documented_acl_user_has_exactly_the_required_permissions() {
    let server = flavour().start();
    let words = documented_user();
    set_user(&server, &words);
    run_scripts(&server).unwrap();
    for (index, word) in words.iter().enumerate().filter(|(_, word)| word.starts_with('+')) {
        // CLIENT SETNAME is optional. The others are only needed for another database, Sentinel or Cluster.
        let others = ["+client|setname", "+select", "+role", "+cluster|slots", "+asking"];
        if others.contains(&word.as_str()) {
            continue;
        }
        let mut fewer = words.clone();
        fewer.remove(index);
        set_user(&server, &fewer);
        let error = run_scripts(&server).unwrap_err();
        assert!(matches!(error, CallError::NotPermitted(_)), "without {word}: {error:?}");
        assert_eq!(error.outcome(), StoreOutcome::Rejected);
    }
    set_user(&server, &words);
    let mut settings = single_server(&server);
    settings.credentials = credentials(Some("weir"), "secret");
    let error = Caller::new(settings).increment("other:a").unwrap_err();
    assert!(matches!(error, CallError::NotPermitted(_)), "a key with another prefix: {error:?}");
}

#[test]
fn keys_are_in_the_configured_database() {
    let server = flavour().start();
    let mut third = single_server(&server);
    let Topology::Single(place) = &mut third.topology else { panic!() };
    place.db = 3;
    assert_eq!(Caller::new(third).increment("weir:a"), Ok(1));
    assert_eq!(server.cli(&["-n", "3", "get", "weir:a"]), "1");
    assert_eq!(server.cli(&["-n", "0", "exists", "weir:a"]), "0");
    let mut none = single_server(&server);
    let Topology::Single(place) = &mut none.topology else { panic!() };
    place.db = 99;
    let error = Caller::new(none).increment("weir:a").unwrap_err();
    assert!(error.to_string().contains("DB index is out of range"), "{error}");
}

#[test]
fn server_is_reached_over_a_unix_socket() {
    let server = flavour().with_login(
        |directory, port| {
            let socket = directory.join("socket").display().to_string();
            ["--port", &port.to_string(), "--unixsocket", &socket].map(str::to_owned).to_vec()
        },
        &[],
    );
    let socket = server.directory().join("socket");
    // The server creates it after its TCP socket.
    wait::until_true("the socket", || UnixStream::connect(&socket).is_ok());
    let place = weir_store::remote::channel::ServerAddress::Unix(socket.into());
    let caller = Caller::new(settings(Topology::Single(One { address: place, db: 0 })));
    assert_eq!(caller.increment("weir:a"), Ok(1));
    assert_eq!(server.cli(&["get", "weir:a"]), "1");
}
