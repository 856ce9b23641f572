//! The token of the admin port, and requests of browsers.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use super::weir_explain;
use crate::support::weir::run;
use crate::support::{LISTENER, Request, Weir, config, fetch, wait};

const BAN: &str = "/limits/ban?rule=per-ip&key=client_ip%3D203.0.113.7&for=1m";
const TOKEN: &str = "an-admin-token-0123";

fn with_admin(admin: &str) -> String {
    format!(
        "listeners: [{LISTENER}]\nupstream: echo\nworkers: 1\nadmin: {admin}\nrules: [{{ name: per-ip, key: client_ip, limit: 3/d }}]\n"
    )
}

/// Returns the status of a request to the admin port with this token.
fn status(admin: SocketAddr, request: Request, token: Option<&str>) -> u16 {
    let request = match token {
        Some(token) => request.header("authorization", &format!("Bearer {token}")),
        None => request,
    };
    fetch(admin, &request.host("localhost")).status
}

/// Starts Weir with a token; the probes' address shows when it is ready.
fn start(directory: &tempfile::TempDir) -> (Weir, SocketAddr) {
    fs::write(directory.path().join("token"), format!("{TOKEN}\n")).unwrap();
    let file = directory.path().join("weir.yaml");
    fs::write(&file, with_admin("{ address: 127.0.0.1:0, probes: 127.0.0.1:0, token: { file: token } }"))
        .unwrap();
    let weir = Weir::start_file_with_token(&file, TOKEN);
    let admin = weir.admin_address("full");
    (weir, admin)
}

#[test]
fn token_protects_every_endpoint_except_probes() {
    let directory = tempfile::tempdir().unwrap();
    let (weir, admin) = start(&directory);
    for request in
        [Request::get("/clusters"), Request::get("/ready"), Request::get("/limits"), Request::post(BAN, "")]
    {
        let target = format!("{request:?}");
        let status = |token| status(admin, request.clone(), token);
        assert_eq!(
            (status(None), status(Some("wrong-token-0123456")), status(Some(TOKEN))),
            (401, 401, 200),
            "{target}"
        );
    }
    // The page asks for the token, and has no data without it.
    for path in ["/", "/help"] {
        assert_eq!(status(admin, Request::get(path), None), 200, "{path}");
    }
    for path in ["/ready", "/metrics"] {
        assert_eq!(fetch(weir.admin_address("probes"), &Request::get(path)).status, 200, "{path}");
    }
    assert!(!weir.log().iter().any(|line| line.contains(TOKEN)));
    let dump = fetch(
        admin,
        &Request::get("/config_dump").host("localhost").header("authorization", &format!("Bearer {TOKEN}")),
    );
    assert!(dump.status == 200 && !dump.body.text().contains(TOKEN));
}

#[test]
fn token_file_is_followed_and_used_by_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let (weir, admin) = start(&directory);
    let (file, address) = (weir.file().to_str().unwrap().to_owned(), admin.to_string());
    let explain =
        |arguments: &[&str]| weir_explain(&[arguments, &["--admin", &address, "GET", "/"]].concat()).0;
    assert_eq!(
        (explain(&[]), explain(&["-c", &file]), explain(&["--token", TOKEN])),
        (Some(2), Some(0), Some(0))
    );
    let token_file = directory.path().join("token");
    assert_eq!(explain(&["--token-file", token_file.to_str().unwrap()]), Some(0));
    assert_eq!(explain(&["--token-file", "/nonexistent"]), Some(2));
    let top = run(["top", "--once", "--token", TOKEN, "--admin", &address]);
    assert!(top.status.success(), "{}", String::from_utf8_lossy(&top.stderr));
    let (_, _, error) = weir_explain(&["--admin", &address, "GET", "/"]);
    let top = run(["top", "--once", "--admin", &address]);
    for error in [error.as_bytes(), &top.stderr] {
        let error = String::from_utf8_lossy(error);
        assert!(error.contains("use --token-file FILE, --token TOKEN or WEIR_ADMIN_TOKEN"), "{error}");
    }
    fs::write(directory.path().join("next"), "another-token-0123\n").unwrap();
    fs::rename(directory.path().join("next"), directory.path().join("token")).unwrap();
    let is_new = || status(admin, Request::get("/limits"), Some("another-token-0123")) == 200;
    wait::until("the new token", || is_new().then_some(()));
    assert_eq!(status(admin, Request::get("/limits"), Some(TOKEN)), 401);
}

#[test]
fn without_a_token_limits_are_changed_on_loopback_only() {
    let weir = Weir::start(&with_admin("{ address: 0.0.0.0:0 }"));
    let port = weir.admin_address("full").port();
    let admin = SocketAddr::from(([127, 0, 0, 1], port));
    let response = fetch(admin, &Request::post(BAN, "").host("localhost"));
    assert!(
        response.status == 403 && response.body.text().contains("Set admin.token"),
        "{}",
        response.body.text()
    );
    // Other commands are accepted from this host, so that hooks of the pod work, and from no other.
    assert_eq!(status(admin, Request::post("/healthcheck/ok", ""), None), 200);
    assert_eq!(status(admin, Request::get("/limits/overrides"), None), 200);
    let Some(own_address) = address_of_this_host() else { return };
    let admin = SocketAddr::from((own_address, port));
    for command in ["/healthcheck/fail", "/logging?level=off", "/drain_listeners", "/quitquitquit"] {
        let response = fetch(admin, &Request::post(command, "").host("127.0.0.1"));
        assert!(
            response.status == 403 && response.body.text().contains("Set admin.token"),
            "{command}: {}",
            response.body.text()
        );
    }
    assert_eq!(status(admin, Request::get("/ready"), None), 200);
}

/// Returns an address of this host that is not loopback, if it has one.
fn address_of_this_host() -> Option<IpAddr> {
    // Sends nothing: it only chooses a route.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn reload_that_removes_the_token_off_loopback_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    fs::write(&file, with_admin(&format!("{{ address: 0.0.0.0:0, probes: 127.0.0.1:0, token: {TOKEN} }}")))
        .unwrap();
    let weir = Weir::start_file_with_token(&file, TOKEN);
    let is_logged = || weir.log().iter().any(|line| line.contains("has no token any more"));
    assert!(!is_logged());
    weir.replace_file(&with_admin("{ address: 0.0.0.0:0, probes: 127.0.0.1:0 }"));
    wait::until("the warning", || is_logged().then_some(()));
}

#[test]
fn commands_of_web_pages_are_rejected_except_those_of_the_page_itself() {
    let weir = Weir::start(&config("echo", "rules: [{ name: per-ip, key: client_ip, limit: 3/d }]"));
    let admin = weir.admin_address("full");
    let own = format!("http://{admin}");
    let send = |path: &str, origin: &str, header: Option<&str>| {
        let request = Request::post(path, "").host(&admin.to_string()).header("origin", origin);
        let request =
            header.into_iter().fold(request, |request, value| request.header("x-weir-admin", value));
        fetch(admin, &request).status
    };
    assert_eq!(send(BAN, &own, Some("1")), 200);
    assert_eq!(send(BAN, &own, None), 403);
    assert_eq!(send(BAN, "http://evil.example", Some("1")), 403);
    assert_eq!(send(BAN, "null", Some("1")), 403);
    assert_eq!(send("/quitquitquit", &own, Some("1")), 403);
    let preflight =
        Request::new("OPTIONS", BAN).host(&admin.to_string()).header("origin", "http://evil.example");
    let response = fetch(admin, &preflight);
    assert!(response.status == 405 && !response.head.has_token("access-control-allow-origin", "*"));
}
