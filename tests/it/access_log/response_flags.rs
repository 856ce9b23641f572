//! Response flags of the access log: each flag, produced by its event.

use std::net::SocketAddr;

use serde_json::Value;

use super::AccessLogFile;
use crate::rls::RlsService;
use crate::support::origin::refusing_address;
use crate::support::wait::until_true;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, fetch, get};

/// Starts Weir with `upstream`, which is YAML, and an access log.
fn start_with_access_log(upstream: &str, rest: &str) -> (Weir, AccessLogFile) {
    let log = AccessLogFile::new();
    let rules = if rest.contains("rules:") { "" } else { "rules: []" };
    let weir = Weir::start(&format!(
        "listeners: 127.0.0.1:0\nworkers: 1\nadmin: {{ address: 127.0.0.1:0 }}\n{upstream}\n{rest}\n{rules}\naccess_log: {{ path: {}, format: json }}\n",
        log.path.display()
    ));
    (weir, log)
}

fn start_in_front_of(origin: &Origin, settings: &str, rest: &str) -> (Weir, AccessLogFile) {
    start_with_access_log(
        &format!("upstream: {{ address: '{}', outliers: false{settings} }}", origin.address()),
        rest,
    )
}

impl AccessLogFile {
    /// Waits until there are `count` lines, and returns the status and the flag of each.
    fn flags(&self, count: usize) -> Vec<(u64, String)> {
        let flag = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            let flag = line["response_flags"].as_str().unwrap().to_owned();
            (line["response_code"].as_u64().unwrap_or(0), flag)
        };
        self.lines(count).iter().map(flag).collect()
    }

    fn assert_flags(&self, flags: &[(u64, &str)]) {
        let seen = self.flags(flags.len());
        let seen: Vec<_> = seen.iter().map(|(status, flag)| (*status, flag.as_str())).collect();
        assert_eq!(seen, flags);
    }
}

/// Returns an upstream that closes its connections instead of responding, or in the middle of a response.
fn closing_upstream() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        if turn.head.word(1) == "/half" {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it")?;
        }
        Ok(AfterResponse::Close)
    })
}

/// Returns an upstream that never responds.
fn silent_upstream() -> Origin {
    Origin::start(|turn| {
        turn.wire.drain();
        Ok(AfterResponse::Close)
    })
}

#[test]
fn rls_rejection_sets_rl_and_rls_failure_sets_rlse() {
    let file =
        "domain: d\ndescriptors: [{ key: generic_key, rate_limit: { unit: year, requests_per_unit: 1 } }]\n";
    let service = RlsService::start(&[("d.yaml", file)]);
    let (_socket, nobody) = refusing_address();
    let scope = |at: SocketAddr| format!("{{ rls: '{at}', domain: d, timeout: 20s, on_error: deny }}");
    let rules = format!(
        "rules:\n- {{ name: few, match: {{ path: /few }}, scope: {} }}\n- {{ name: nobody, match: {{ path: /no }}, scope: {} }}\n",
        scope(service.weir.rls_address("grpc")),
        scope(nobody)
    );
    let origin = Origin::hello();
    let (weir, log) = start_in_front_of(&origin, "", &rules);
    for path in ["/few", "/few", "/no"] {
        get(weir.address(), path);
    }
    log.assert_flags(&[(200, "-"), (429, "RL"), (503, "RLSE")]);
    let decision = |line: &String| {
        let line: Value = serde_json::from_str(line).unwrap();
        [line["rule"].clone(), line["outcome"].clone()]
    };
    let decisions: Vec<_> = log.lines(3).iter().map(decision).collect();
    assert_eq!(decisions, [["few", "allowed"], ["few", "limited"], ["nobody", "denied"]]);
}

#[test]
fn rule_rejections_set_rl_or_uaex() {
    let rules = "rules:\n- { name: no, match: { path: /no }, action: deny }\n\
        - { name: few, match: { path: /few }, key: [], limit: 1/d }\n\
        - { name: keyed, match: { path: /keyed }, key: { header: x-key }, limit: 9/d }\n";
    let origin = Origin::hello();
    let (weir, log) = start_in_front_of(&origin, "", rules);
    let mut client = Client::connect(weir.address());
    for path in ["/", "/no", "/few", "/few"] {
        client.get(path);
    }
    client.fetch(&Request::get("/keyed").header("x-key", "one").header("x-key", "two"));
    log.assert_flags(&[(200, "-"), (403, "UAEX"), (200, "-"), (429, "RL"), (400, "UAEX")]);
}

#[test]
fn no_matching_upstream_sets_nr_and_no_healthy_endpoint_sets_uh() {
    let (_socket, address) = refusing_address();
    let origin = Origin::hello();
    let (weir, log) = start_with_access_log(
        &format!(
            "upstreams:\n- {{ name: good, match: {{ path: /good }}, address: '{}' }}\n\
            - {{ name: ill, match: {{ path: /ill }}, address: '{address}', panic_threshold: 0%, \
            health_check: {{ interval: 100ms }} }}",
            origin.address()
        ),
        "",
    );
    let healthy = || weir.metric("weir_upstream_endpoints_healthy", &[("upstream", "ill")]);
    until_true("the check", || healthy() == 0.0);
    let mut client = Client::connect(weir.address());
    for path in ["/good", "/other", "/ill"] {
        client.get(path);
    }
    log.assert_flags(&[(200, "-"), (404, "NR"), (503, "UH")]);
}

#[test]
fn connect_failure_sets_uf_and_upstream_close_sets_uc() {
    let (_socket, address) = refusing_address();
    let (weir, log) = start_with_access_log(&format!("upstream: '{address}'"), "");
    get(weir.address(), "/");
    log.assert_flags(&[(503, "UF")]);
    let origin = closing_upstream();
    let (weir, log) = start_in_front_of(&origin, "", "");
    get(weir.address(), "/");
    let answer = Client::connect(weir.address()).try_fetch(&Request::get("/half"));
    // The client gets a 502 if the failure is seen before anything was sent. Otherwise the response is truncated.
    let status = answer.map_or(200, |answer| answer.status.into());
    log.assert_flags(&[(503, "UC"), (status, "UC")]);
}

#[test]
fn upstream_protocol_error_sets_upe() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send(match turn.head.word(1) {
            "/switch" => "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
            _ => "220 mail.test ready\r\n",
        })?;
        Ok(AfterResponse::Close)
    });
    let (weir, log) = start_in_front_of(&origin, "", "");
    get(weir.address(), "/");
    get(weir.address(), "/switch");
    log.assert_flags(&[(502, "UPE"), (502, "UPE")]);
}

#[test]
fn upstream_timeout_sets_ut_and_circuit_breaker_sets_uo() {
    let origin = silent_upstream();
    let (weir, log) = start_in_front_of(&origin, ", timeout: 200ms", "");
    get(weir.address(), "/");
    log.assert_flags(&[(504, "UT")]);
    let (weir, log) = start_in_front_of(&origin, ", limits: { requests: 1 }", "");
    let waiting = Client::connect(weir.address());
    waiting.send(Request::get("/waiting").to_bytes());
    origin.until_request("the request", |seen| seen.head.word(1) == "/waiting");
    get(weir.address(), "/");
    log.assert_flags(&[(503, "UO")]);
}

#[test]
fn downstream_protocol_error_sets_dpe() {
    let origin = Origin::hello();
    let (weir, log) = start_in_front_of(&origin, "", "");
    fetch(weir.address(), &Request::get("/%00"));
    fetch(weir.address(), &Request::new("TRACE", "/"));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\nno chunk\r\n");
    client.read_response("POST");
    log.assert_flags(&[(400, "DPE"), (405, "DPE"), (400, "DPE")]);
}

#[test]
fn client_disconnect_sets_dc_and_stalled_upload_sets_si() {
    let origin = silent_upstream();
    let (weir, log) = start_in_front_of(&origin, ", idle_timeout: 500ms", "");
    let leaving = Client::connect(weir.address());
    leaving.send(Request::get("/").to_bytes());
    origin.until_request("the request", |seen| seen.head.word(0) == "GET");
    drop(leaving);
    assert_eq!(log.flags(1)[0].1, "DC");
    let mut stalling = Client::connect(weir.address());
    stalling.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 10\r\n\r\nsome");
    assert_eq!(stalling.read_response("POST").status, 408);
    assert_eq!(log.flags(2)[1], (408, "SI".to_owned()));
}

#[test]
fn exhausted_retries_set_urx() {
    let away = [refusing_address(), refusing_address(), refusing_address()];
    let places = away.each_ref().map(|(_, address)| format!("'{address}'")).join(", ");
    let (weir, log) = start_with_access_log(
        &format!(
            "upstream: {{ address: [{places}], outliers: false, retries: {{ attempts: 1, backoff: 1ms }} }}"
        ),
        "",
    );
    get(weir.address(), "/");
    log.assert_flags(&[(503, "UF,URX")]);
    let (closing, silent) = (closing_upstream(), silent_upstream());
    let (weir, log) = start_in_front_of(&closing, ", retries: { attempts: 1, backoff: 1ms }", "");
    get(weir.address(), "/");
    log.assert_flags(&[(503, "UC,URX")]);
    let retries = ", retries: { attempts: 1, backoff: 1ms, retry_on: timeout, per_try_timeout: 100ms }";
    let (weir, log) = start_in_front_of(&silent, retries, "");
    get(weir.address(), "/");
    log.assert_flags(&[(504, "UT,URX")]);
    let busy = Origin::responding_with("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
    let (weir, log) = start_in_front_of(&busy, ", retries: { attempts: 1, backoff: 1ms }", "");
    get(weir.address(), "/");
    log.assert_flags(&[(503, "URX")]);
}
