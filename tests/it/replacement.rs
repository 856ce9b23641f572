//! SIGUSR2: another process takes over sockets, counters and connections.

mod failures;
mod load;

use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use crate::support::h2::H2Client;
use crate::support::{Client, Origin, Weir, get, wait};

/// A process and those that replace it. All are killed when this is dropped.
pub(super) struct Replaceable {
    pub(super) weir: Weir,
    /// The processes that have replaced the first one.
    pids: Mutex<Vec<u32>>,
}

impl Drop for Replaceable {
    fn drop(&mut self) {
        self.replacements();
        for pid in &*self.pids.lock().unwrap() {
            // Fails if the process has ended.
            signal(*pid, "KILL");
        }
    }
}

/// Sends a signal, if there is such a process.
pub(super) fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid} 2>&-");
    Command::new("sh").args(["-c", &kill]).status().unwrap();
}

impl Replaceable {
    pub(super) fn start(yaml: &str) -> Self {
        Self::of(Weir::start(yaml))
    }

    pub(super) fn of(weir: Weir) -> Self {
        Self { weir, pids: Mutex::default() }
    }

    /// Returns how many processes have been replaced.
    fn replacements(&self) -> usize {
        let log = self.weir.log();
        let events = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let replaced = events.filter(|event| event["message"] == "replaced by another process: draining");
        let pids: Vec<_> =
            replaced.filter_map(|event| u32::try_from(event["process"].as_u64()?).ok()).collect();
        *self.pids.lock().unwrap() = pids;
        self.pids.lock().unwrap().len()
    }

    /// Returns the process that serves.
    pub(super) fn pid(&self) -> u32 {
        self.replacements();
        self.pids.lock().unwrap().last().copied().unwrap_or_else(|| self.weir.pid())
    }

    /// Replaces the process, and waits until the new one serves.
    pub(super) fn replace(&self) {
        let before = self.replacements();
        signal(self.pid(), "USR2");
        wait::until_true("the new process", || self.replacements() > before);
    }

    /// Returns whether a line of the log contains `text`.
    pub(super) fn has_logged(&self, text: &str) -> bool {
        self.weir.log().iter().any(|line| line.contains(text))
    }
}

/// A configuration with this upstream and these further lines.
pub(super) fn config(upstream: impl std::fmt::Display, rest: &str) -> String {
    format!(
        "listeners: [{{ address: 127.0.0.1:0, name: main }}]\nadmin: {{ address: 127.0.0.1:0 }}\nworkers: 2\n\
         upstream: {{ address: \"{upstream}\" }}\n{rest}\n"
    )
}

fn statuses(client: &mut Client, count: usize) -> Vec<u16> {
    (0..count).map(|_| client.get("/").status).collect()
}

#[test]
fn connection_and_its_counters_go_on_in_the_new_process() {
    let mut replaceable =
        Replaceable::start(&config("echo", "rules: [{ name: all, limit: 5/h, algorithm: fixed_window }]"));
    let address = replaceable.weir.address();
    let (mut client, mut unused) = (Client::connect(address), Client::connect(address));
    assert_eq!(statuses(&mut client, 2), [200, 200]);
    replaceable.replace();
    assert!(replaceable.weir.wait_exit().success(), "nothing is left to do for the old process");
    assert_eq!(statuses(&mut client, 2), [200, 200]);
    assert_eq!(statuses(&mut unused, 2), [200, 429]);
    assert_eq!(get(address, "/").status, 429);
    assert_eq!(replaceable.weir.admin_json("/server_info")["config"]["generation"], 1);
}

#[test]
fn requests_in_flight_end_in_the_old_process_and_give_their_permits_back() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: one, match: { path: /one }, concurrency: 1 }]";
    let mut replaceable = Replaceable::start(&config(origin.address(), rules));
    let address = replaceable.weir.address();
    let mut busy = Client::connect(address);
    busy.send("POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/one");
    replaceable.replace();
    assert_eq!(get(address, "/one").status, 429, "the permit is in use in the old process");
    busy.send("cd");
    assert_eq!(busy.read_response("POST").status, 200);
    wait::until_true("the permit", || get(address, "/one").status == 200);
    assert!(replaceable.weir.wait_exit().success());
}

#[test]
fn permits_of_an_old_process_that_is_killed_come_back() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: one, match: { path: /one }, concurrency: 1 }]";
    let mut replaceable = Replaceable::start(&config(origin.address(), rules));
    let address = replaceable.weir.address();
    let busy = Client::connect(address);
    busy.send("POST /one HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    origin.until_request("the upload", |request| request.head.word(1) == "/one");
    replaceable.replace();
    assert_eq!(get(address, "/one").status, 429);
    replaceable.weir.kill();
    wait::until_true("the permit", || get(address, "/one").status == 200);
}

#[test]
fn http2_connections_end_in_order() {
    let origin = Origin::hello();
    let mut replaceable = Replaceable::start(&config(origin.address(), "rules: []"));
    let address = replaceable.weir.address();
    let mut client = H2Client::connect(address);
    assert_eq!(client.fetch(client.request("GET", "/")).status, 200);
    let (response, mut upload) = client.send_request(client.request("POST", "/slow"), false).unwrap();
    upload.send_data("ab".into(), false).unwrap();
    origin.until_request("the upload", |request| request.head.word(1) == "/slow");
    replaceable.replace();
    upload.send_data("cd".into(), true).unwrap();
    assert_eq!(client.read_response(response).unwrap().status, 200);
    client.until_closed().unwrap();
    assert!(replaceable.weir.wait_exit().success());
    let mut next = H2Client::connect(address);
    assert_eq!(next.fetch(next.request("GET", "/")).status, 200);
}

#[test]
fn bans_and_boosts_stay_in_force() {
    let rules = "rules: [{ name: each, key: { header: x-user }, limit: 2/h, algorithm: fixed_window }]";
    let replaceable = Replaceable::start(&config("echo", rules));
    let weir = &replaceable.weir;
    for command in ["ban?rule=each&key=bad&for=1h", "boost?rule=each&key=good&factor=2&for=1h"] {
        let answer = weir.admin_post(&format!("/{command}"));
        assert_eq!(answer.status, 200, "{command}: {}", answer.body.text());
    }
    let get = |user: &str| {
        let request = crate::support::Request::get("/").header("x-user", user);
        crate::support::fetch(weir.address(), &request).status
    };
    assert_eq!((get("good"), get("bad")), (200, 429));
    replaceable.replace();
    assert_eq!(get("bad"), 429);
    assert_eq!([get("good"), get("good"), get("good"), get("good")], [200, 200, 200, 429]);
    let listed = replaceable.weir.admin_get("/overrides").body.text();
    assert!(listed.contains("good") && listed.contains("bad"), "{listed}");
}

#[test]
fn configuration_of_the_new_process_may_differ() {
    let rules = "rules: [{ name: all, limit: 5/h, algorithm: fixed_window }]";
    let replaceable = Replaceable::start(&config("echo", rules));
    let address = replaceable.weir.address();
    let mut client = Client::connect(address);
    assert_eq!(statuses(&mut client, 3), [200; 3]);
    // The sockets of three workers serve one.
    let other = config("echo", "rules: [{ name: all, limit: 4/h, algorithm: fixed_window }]")
        .replace("workers: 2", "workers: 5");
    replaceable.weir.replace_file(&other);
    replaceable.replace();
    assert_eq!(statuses(&mut client, 2), [200, 429]);
    let fewer = other.replace("workers: 5", "workers: 1");
    replaceable.weir.replace_file(&fewer);
    replaceable.replace();
    for _ in 0..20 {
        assert_eq!(get(address, "/").status, 429);
    }
}
