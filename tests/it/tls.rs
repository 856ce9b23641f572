//! TLS to clients, tested with curl and openssl, and certificates that are added and removed.

mod client_certificates;
mod handshake_limits;
mod rotation;
mod self_signed;
mod upstream;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::pki::Authority;
use crate::support::{Origin, Weir, config_with};

/// A proxy with a certificate for `app.example`, and what a client needs to connect.
struct TlsProxy {
    directory: TempDir,
    authority: Authority,
    origin: Origin,
    weir: Weir,
}

impl TlsProxy {
    /// Starts a proxy. `more` is added to the section `tls`; in it, `DIR` stands for the directory of the certificates.
    fn start(more: &str, rest: &str) -> Self {
        Self::start_with_header_timeout("1s", more, rest)
    }

    /// Starts such a proxy with this header timeout, which also applies to handshakes.
    fn start_with_header_timeout(header_timeout: &str, more: &str, rest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("authority");
        authority.write(&directory.path().join("ca.crt"));
        authority.issue("app.example", directory.path(), "app");
        authority.issue("*.wild.example", directory.path(), "wild");
        let origin = Origin::hello();
        let text = yaml(directory.path(), &origin, more, rest);
        let weir =
            Weir::start(&text.replace("header_timeout: 1s", &format!("header_timeout: {header_timeout}")));
        Self { directory, authority, origin, weir }
    }

    /// Runs curl for a GET of `/` at `host`, with further `arguments`, and returns its output.
    fn curl(&self, host: &str, arguments: &[&str]) -> Output {
        let to = format!("{host}:443:127.0.0.1:{}", self.weir.address().port());
        Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "10", "--cacert"])
            .arg(self.directory.path().join("ca.crt"))
            .args(["--connect-to", &to, &format!("https://{host}/")])
            .args(arguments)
            .current_dir(self.directory.path())
            .output()
            .unwrap()
    }

    /// Runs `openssl s_client`, sends a request and returns the output when the connection has ended.
    fn openssl(&self, arguments: &[&str]) -> String {
        let mut child = Command::new("openssl")
            .args(["s_client", "-ign_eof", "-CAfile", "ca.crt", "-connect"])
            .arg(self.weir.address().to_string())
            .args(arguments)
            .current_dir(self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: app.example\r\nconnection: close\r\n\r\n";
        // If the handshake failed, the process may have ended already.
        let _ = std::io::Write::write_all(&mut stdin, request);
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

fn yaml(directory: &Path, origin: &Origin, more: &str, rest: &str) -> String {
    let directory = directory.display().to_string();
    let listener = format!(
        "{{ address: 127.0.0.1:0, name: inbound, header_timeout: 1s, \
         tls: {{ certificate: DIR/app.crt, key: DIR/app.key{more} }} }}"
    );
    let listener = listener.replace("DIR", &directory);
    config_with(
        &listener,
        &format!("{{ address: \"{}\" }}", origin.address()),
        &rest.replace("DIR", &directory),
    )
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_is_served_over_http1_and_http2_with_x_forwarded_proto() {
    let secured = TlsProxy::start("", "");
    for (version, flag) in [("2", "--http2"), ("1.1", "--http1.1")] {
        let said =
            text(&secured.curl("app.example", &[flag, "--write-out", " %{http_code} %{http_version}"]));
        assert!(said.ends_with(&format!(" 200 {version}")), "{said}");
    }
    for seen in secured.origin.requests() {
        assert_eq!(seen.head.get("x-forwarded-proto"), Some("https"));
        assert_eq!(seen.head.get("x-forwarded-client-cert"), None);
    }
    assert!(secured.weir.metric("weir_tls_handshakes_total", &[("outcome", "full")]) >= 2.0);
}

#[test]
fn tls_1_2_and_1_3_are_accepted_and_older_versions_rejected() {
    let secured = TlsProxy::start("", "");
    for version in ["-tls1_3", "-tls1_2"] {
        let said = secured.openssl(&[version, "-servername", "app.example", "-verify_return_error"]);
        assert!(said.contains("HTTP/1.1 200 OK") && said.contains("Verify return code: 0"), "{said}");
    }
    let said = secured.openssl(&["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"]);
    assert!(!said.contains("HTTP/1.1"), "{said}");
}

#[test]
fn certificate_is_selected_by_sni() {
    let secured = TlsProxy::start(", certificates: [{ certificate: DIR/wild.crt, key: DIR/wild.key }]", "");
    for (asked, subject) in
        [("app.example", "app.example"), ("b.wild.example", "*.wild.example"), ("other", "app.example")]
    {
        let said = secured.openssl(&["-servername", asked]);
        assert!(
            said.contains(&format!("CN = {subject}")) || said.contains(&format!("CN={subject}")),
            "{said}"
        );
    }
    let said = secured.openssl(&["-noservername"]);
    assert!(said.contains("app.example") && said.contains("HTTP/1.1 200 OK"), "{said}");
    assert_eq!(text(&secured.curl("c.wild.example", &[])), "hello");
}

#[test]
fn sessions_are_resumed_on_any_worker() {
    let secured = TlsProxy::start("", "workers: 2\n");
    for version in ["-tls1_3", "-tls1_2"] {
        let said = secured.openssl(&[version, "-sess_out", "session"]);
        assert!(said.contains("New, TLS"), "{said}");
        for _ in 0..6 {
            let said = secured.openssl(&[version, "-sess_in", "session"]);
            assert!(said.contains("Reused, TLS") && said.contains("HTTP/1.1 200 OK"), "{said}");
        }
    }
    assert!(secured.weir.metric("weir_tls_handshakes_total", &[("outcome", "resumed")]) >= 12.0);
}

#[test]
fn certs_endpoint_and_metric_show_expiry() {
    let secured = TlsProxy::start(", client_ca: DIR/ca.crt, client_auth: optional", "");
    let certs = secured.weir.admin_json("/certs");
    let shown = &certs["certificates"][0];
    let (own, authority) = (&shown["cert_chain"][0], &shown["ca_cert"][0]);
    assert!(own["path"].as_str().unwrap().ends_with("/app.crt"), "{certs:#}");
    assert!(authority["path"].as_str().unwrap().ends_with("/ca.crt"), "{certs:#}");
    assert_eq!(own["subject_alt_names"][0]["dns"], "app.example");
    assert_eq!(own["subject_alt_names"][1]["uri"], "spiffe://test/app.example");
    assert!(own["days_until_expiration"].as_str().unwrap().parse::<u64>().unwrap() > 365);
    assert!(own["serial_number"].as_str().unwrap().bytes().all(|digit| digit.is_ascii_hexdigit()));
    assert!(own["expiration_time"].as_str().unwrap() > own["valid_from"].as_str().unwrap());
    let left = secured.weir.metric("weir_tls_certificate_expiry_seconds", &[]);
    assert!(left > 365.0 * 86_400.0, "{left}");
}
