//! Logs as they lie: of several programs, and in the wrappers of container runtimes, log shippers and clouds.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::weir::run;

/// The second login of a client is rejected if address, time, method, path and status are read: only failures count.
const RULES: &str = "listeners: [\"127.0.0.1:0\"]\nupstream: echo\nrules:\n\
    - { name: failed, match: { path: /login, method: POST }, key: [client_ip], limit: 1/h, count: { response_status: 401 } }\n";

/// Replays a log; returns the report, the exit code and standard error.
fn replay(directory: &Path, name: &str, text: &str, rules: &str) -> (Value, Option<i32>, String) {
    let (config, log, report) =
        (directory.join("weir.yaml"), directory.join(format!("{name}.log")), directory.join("report.json"));
    std::fs::write(&config, rules).unwrap();
    std::fs::write(&log, text).unwrap();
    let [config, log, file] = [&config, &log, &report].map(|path| path.to_str().unwrap());
    let output = run(["replay", "-c", config, "--json", file, log]);
    let report = std::fs::read(&report).unwrap_or_default();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (serde_json::from_slice(&report).unwrap_or_default(), output.status.code(), errors)
}

/// Checks that a log has the three requests: two logins of one client that fail, and one request of another client.
fn assert_replayed(name: &str, text: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (report, code, errors) = replay(directory.path(), name, text, RULES);
    assert_eq!(code, Some(0), "{name}: {errors}\n{text}");
    assert_eq!((&report["requests"], &report["rejected"]), (&json!(3), &json!(1)), "{name}: {report:#}");
    for end in ["from", "to"] {
        let time = report[end].as_str().unwrap();
        assert!(time.starts_with("2026-11-23T20:07:0"), "{name}: {time}");
    }
    assert_eq!(report["clients"]["top"][0]["client"], "192.0.2.7", "{name}: {report:#}");
}

const COMBINED: &str = "\
192.0.2.7 - - [23/Nov/2026:20:07:02 +0000] \"POST /login HTTP/1.1\" 401 12 \"-\" \"curl/8.5\"
192.0.2.7 - - [23/Nov/2026:20:07:03 +0000] \"POST /login?a=b HTTP/1.1\" 401 12 \"-\" \"curl/8.5\"
198.51.100.9 - - [23/Nov/2026:20:07:04 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl/8.5\"
";
const ENVOY: &str = "\
[2026-11-23T20:07:02.000Z] \"POST /login HTTP/1.1\" 401 - 7 91 5 4 \"192.0.2.7\" \"curl\" \"id\" \"a.test\" \"10.0.0.2:80\"
[2026-11-23T20:07:03.000Z] \"POST /login HTTP/1.1\" 401 - 7 91 5 4 \"192.0.2.7\" \"curl\" \"id\" \"a.test\" \"10.0.0.2:80\"
[2026-11-23T20:07:04.000Z] \"GET / HTTP/2\" 200 - 0 5 5 4 \"198.51.100.9\" \"curl\" \"id\" \"a.test\" \"10.0.0.2:80\"
";
const JSON: &str = r#"{"time":"2026-11-23T20:07:02Z","remote_addr":"192.0.2.7","method":"POST","path":"/login","status":401,"user_agent":"a\"b"}
{"time":"2026-11-23T20:07:03Z","remote_addr":"192.0.2.7","method":"POST","path":"/login","status":401,"user_agent":"a\"b"}
{"time":"2026-11-23T20:07:04Z","remote_addr":"198.51.100.9","method":"GET","path":"/","status":200,"user_agent":"a\"b"}
"#;

/// Returns the log with each line in a wrapper.
fn wrapped(log: &str, wrap: impl Fn(&str) -> String) -> String {
    log.lines().fold(String::new(), |mut text, line| {
        writeln!(text, "{}", wrap(line)).unwrap();
        text
    })
}

#[test]
fn requests_are_found_in_the_wrappers_of_runtimes_shippers_and_clouds() {
    type Wrapper = (&'static str, fn(&str) -> String);
    let wrappers: [Wrapper; 19] = [
        ("cri", |line| format!("2026-11-23T20:07:05.123456789Z stdout F {line}")),
        ("cri-partial", |line| {
            let (first, rest) = line.split_at(line.len() / 2);
            format!("2026-11-23T20:07:05.1Z stdout P {first}\n2026-11-23T20:07:05.1+01:00 stdout F {rest}")
        }),
        ("docker", |line| {
            json!({ "log": format!("{line}\n"), "stream": "stdout", "time": "2026-11-23T20:07:05.1Z" })
                .to_string()
        }),
        ("fluent-bit", |line| {
            json!({ "date": 1795464425.1, "stream": "stdout", "log": line, "kubernetes": { "pod_name": "a" } }).to_string()
        }),
        ("fluent-bit-cri", |line| {
            json!({ "@timestamp": "2026-11-23T20:07:05Z", "log": format!("2026-11-23T20:07:05.1Z stdout F {line}") })
                .to_string()
        }),
        ("gcp", |line| {
            json!({ "insertId": "x", "textPayload": line, "timestamp": "2026-11-23T20:07:05Z", "resource": { "type": "k8s_container" } })
                .to_string()
        }),
        ("cloudwatch-json", |line| {
            json!({ "timestamp": 1795464425000_u64, "ingestionTime": 1795464425001_u64, "message": line })
                .to_string()
        }),
        ("cloudwatch-text", |line| format!("2026-11-23T20:07:05.123Z {line}")),
        ("azure", |line| {
            json!({ "TimeGenerated": "2026-11-23T20:07:05Z", "LogEntry": line, "PodName": "a" }).to_string()
        }),
        ("azure-v2", |line| {
            let message = serde_json::from_str(line).unwrap_or_else(|_| json!(line));
            json!({ "TimeGenerated": "2026-11-23T20:07:05Z", "LogMessage": message, "LogSource": "stdout" })
                .to_string()
        }),
        ("loki", |line| {
            json!({ "labels": { "app": "a" }, "line": line, "timestamp": "2026-11-23T20:07:05Z" }).to_string()
        }),
        ("vector", |line| {
            json!({ "message": line, "source_type": "kubernetes_logs", "timestamp": "2026-11-23T20:07:05Z" })
                .to_string()
        }),
        ("filebeat", |line| {
            json!({ "@timestamp": "2026-11-23T20:07:05.000Z", "message": line, "log": { "offset": 1 } })
                .to_string()
        }),
        ("journald", |line| {
            json!({ "__REALTIME_TIMESTAMP": "1795464425000000", "MESSAGE": line, "_PID": "1" }).to_string()
        }),
        ("syslog", |line| format!("<134>Nov 23 20:07:05 host proxy[12]: {line}")),
        ("syslog-5424", |line| format!("<134>1 2026-11-23T20:07:05Z host proxy 12 - - {line}")),
        ("kubectl-prefix", |line| format!("[pod/web-1/proxy] {line}")),
        ("kubectl-timestamps", |line| format!("2026-11-23T20:07:05.123456789Z {line}")),
        ("compose", |line| format!("web-1  | {line}")),
    ];
    for (wrapper, wrap) in wrappers {
        for (format, log) in [("combined", COMBINED), ("envoy", ENVOY), ("json", JSON)] {
            assert_replayed(&format!("{wrapper}-{format}"), &wrapped(log, wrap));
        }
    }
}

#[test]
fn formats_of_programs_and_clouds_are_read() {
    for (name, log) in json_logs().into_iter().chain(text_logs()) {
        assert_replayed(name, &log);
    }
}

/// Logs in JSON, and Traefik's in the common log format.
fn json_logs() -> Vec<(&'static str, String)> {
    vec![
        (
            "envoy-gateway",
            wrapped(COMBINED, |line| {
                let (client, method, path, second, status) = parts(line);
                json!({ "start_time": format!("2026-11-23T20:07:0{second}.000Z"), "method": method, "x-envoy-origin-path": path,
                "protocol": "HTTP/1.1", "response_code": status, "response_flags": "-", "response_code_details": "via_upstream",
                "connection_termination_details": "-", "upstream_transport_failure_reason": "-", "bytes_received": "0",
                "bytes_sent": "5", "duration": "1", "x-envoy-upstream-service-time": "-", "x-forwarded-for": client,
                "user-agent": "curl", "x-request-id": "id", ":authority": "a.test", "upstream_host": "10.0.0.2:80",
                "downstream_local_address": "10.0.0.1:10080", "downstream_remote_address": format!("{client}:4711"),
                "requested_server_name": "-", "route_name": "r" }).to_string()
            }),
        ),
        (
            "istio",
            wrapped(COMBINED, |line| {
                let (client, method, path, second, status) = parts(line);
                json!({ "authority": "a.test", "bytes_received": 0, "bytes_sent": 5, "connection_termination_details": null,
                "downstream_local_address": "10.0.0.1:80", "downstream_remote_address": format!("{client}:0"), "duration": 1,
                "method": method, "path": path, "protocol": "HTTP/1.1", "request_id": "id", "requested_server_name": null,
                "response_code": status.parse::<u16>().unwrap(), "response_code_details": "via_upstream",
                "response_flags": "-", "route_name": "default", "start_time": format!("2026-11-23T20:07:0{second}.000Z"),
                "upstream_cluster": "inbound|80||", "upstream_host": "10.0.0.2:80", "upstream_local_address": null,
                "upstream_service_time": "1", "upstream_transport_failure_reason": null, "user_agent": "curl",
                "x_forwarded_for": client }).to_string()
            }),
        ),
        (
            "gcp-load-balancer",
            wrapped(COMBINED, |line| {
                let (client, method, path, second, status) = parts(line);
                json!({ "httpRequest": { "requestMethod": method, "requestUrl": format!("https://a.test{path}"),
                "requestSize": "100", "status": status.parse::<u16>().unwrap(), "responseSize": "5", "userAgent": "curl",
                "remoteIp": client, "serverIp": "10.0.0.2", "latency": "0.012345s" },
                "timestamp": format!("2026-11-23T20:07:0{second}.5Z"), "resource": { "type": "http_load_balancer" } })
            .to_string()
            }),
        ),
        (
            "azure-application-gateway",
            wrapped(COMBINED, |line| {
                let (client, method, path, second, status) = parts(line);
                json!({ "time": format!("2026-11-23T20:07:0{second}+00:00"), "category": "ApplicationGatewayAccessLog",
                "properties": { "instanceId": "a", "clientIP": client, "clientPort": 4711, "httpMethod": method,
                "requestUri": path, "userAgent": "curl", "httpStatus": status.parse::<u16>().unwrap(), "receivedBytes": 100,
                "sentBytes": 5, "timeTaken": 0.012, "host": "a.test" } }).to_string()
            }),
        ),
        (
            "traefik-json",
            wrapped(COMBINED, |line| {
                let (client, method, path, second, status) = parts(line);
                json!({ "ClientAddr": format!("{client}:4711"), "ClientHost": client, "DownstreamStatus": status.parse::<u16>().unwrap(),
                "Duration": 1_000_000, "RequestHost": "a.test", "RequestMethod": method, "RequestPath": path,
                "StartUTC": format!("2026-11-23T20:07:0{second}.000Z"), "level": "info", "msg": "",
                "time": format!("2026-11-23T20:07:0{second}Z") }).to_string()
            }),
        ),
        (
            "traefik-clf",
            wrapped(COMBINED, |line| format!("{line} 1 \"web@docker\" \"http://10.0.0.2:80\" 1ms")),
        ),
        (
            "caddy",
            wrapped(COMBINED, |line| {
                let (client, method, path, second, status) = parts(line);
                json!({ "level": "info", "ts": 1795464420.0 + second.parse::<f64>().unwrap() + 0.5, "logger": "http.log.access",
                "msg": "handled request", "request": { "remote_ip": client, "remote_port": "4711", "client_ip": client,
                "proto": "HTTP/2.0", "method": method, "host": "a.test", "uri": path, "headers": { "User-Agent": ["curl"] } },
                "duration": 0.001, "size": 5, "status": status.parse::<u16>().unwrap() }).to_string()
            }),
        ),
    ]
}

/// Logs as text, and CloudFront's in JSON.
fn text_logs() -> Vec<(&'static str, String)> {
    vec![("alb", wrapped(COMBINED, |line| {
            let (client, method, path, second, status) = parts(line);
            format!("https 2026-11-23T20:07:0{second}.186641Z app/lb/50dc6c495c0c9188 {client}:2817 10.0.0.1:80 0.086 0.048 0.037 \
                {status} {status} 0 57 \"{method} https://a.test:443{path} HTTP/1.1\" \"curl/7.46.0\" ECDHE-RSA-AES128-GCM-SHA256 \
                TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:1:targetgroup/t/7 \"Root=1-58337281\" \"a.test\" \"arn:aws:acm\" \
                1 2026-11-23T20:07:0{second}.100000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"200\" \"-\" \"-\" TID_1")
        })),
        ("classic-elb", wrapped(COMBINED, |line| {
            let (client, method, path, second, status) = parts(line);
            format!("2026-11-23T20:07:0{second}.945958Z lb {client}:2817 10.0.0.1:80 0.000073 0.001048 0.000057 {status} {status} 0 29 \
                \"{method} http://a.test:80{path} HTTP/1.1\" \"curl/7.38.0\" - -")
        })),
        ("cloudfront", "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status \
            cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol \
            cs-bytes time-taken x-forwarded-for\n".to_owned() + &cloudfront()),
        ("cloudfront-without-names", cloudfront()),
        ("cloudfront-json", wrapped(COMBINED, |line| {
            let (client, method, path, second, status) = parts(line);
            json!({ "date": "2026-11-23", "time": format!("20:07:0{second}"), "x-edge-location": "FRA", "c-ip": client,
                "cs-method": method, "cs(Host)": "d1.cloudfront.net", "cs-uri-stem": path.split('?').next(), "sc-status": status,
                "cs(User-Agent)": "curl/8.5", "cs-uri-query": "-", "time-taken": "0.001", "x-host-header": "a.test" }).to_string()
        })),
        ("iis", "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Date: 2026-11-23 20:00:00\n\
            #Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) \
            sc-status sc-substatus sc-win32-status time-taken\n".to_owned() + &wrapped(COMBINED, |line| {
            let (client, method, path, second, status) = parts(line);
            let (path, query) = path.split_once('?').unwrap_or((path, "-"));
            format!("2026-11-23 20:07:0{second} 10.0.0.1 {method} {path} {query} 443 - {client} Mozilla/5.0+(X) - {status} 0 0 15")
        })),
        ("haproxy", wrapped(COMBINED, |line| {
            let (client, method, path, second, status) = parts(line);
            format!("Nov 23 20:07:05 lb haproxy[14389]: {client}:33317 [23/Nov/2026:20:07:0{second}.655] http-in static/srv1 \
                10/0/30/69/109 {status} 2750 - - ---- 1/1/1/1/0 0/0 {{1wt.eu}} {{}} \"{method} {path} HTTP/1.1\"")
        })),
        ("haproxy-without-prefix", wrapped(COMBINED, |line| {
            let (client, method, path, second, status) = parts(line);
            format!("{client}:33317 [23/Nov/2026:20:07:0{second}.655] in~ app/<NOSRV> 0/-1/-1/-1/+7 {status} +212 - - PR-- \
                1/1/0/0/0 0/0 \"{method} {path} HTTP/1.1\" 0/0000000000000000/0/0/1 a.test/TLSv1.3/TLS_AES_128_GCM_SHA256")
        })),
    ]
}

/// Returns client, method, path, the last digit of the second, and status of a line in the combined format.
fn parts(line: &str) -> (&str, &str, &str, &str, &str) {
    let words: Vec<_> = line.split(' ').collect();
    (words[0], words[5].trim_matches('"'), words[6], &words[3][20..21], words[8])
}

fn cloudfront() -> String {
    wrapped(COMBINED, |line| {
        let (client, method, path, second, status) = parts(line);
        let (path, query) = path.split_once('?').unwrap_or((path, "-"));
        let (date, agent) = (format!("2026-11-23\t20:07:0{second}"), "curl/8.5%20(x)");
        format!(
            "{date}\tFRA2\t5\t{client}\t{method}\td1.cloudfront.net\t{path}\t{status}\t-\t{agent}\t{query}\t-\tMiss\tid\t\
            a.test\thttps\t100\t0.012\t-"
        )
    })
}

#[test]
fn headers_of_traefik_caddy_and_w3c_logs_are_read() {
    let rules = "listeners: [\"127.0.0.1:0\"]\nupstream: echo\nrules:\n- { name: key, key: [{ header: x-api-key }], limit: 1/h }\n";
    let traefik = r#"{"StartUTC":"2026-11-23T20:07:02Z","ClientHost":"192.0.2.7","RequestMethod":"GET","RequestPath":"/","request_X-Api-Key":"k"}"#;
    let caddy = r#"{"ts":1795464422.5,"request":{"method":"GET","uri":"/","headers":{"X-Api-Key":["k"]}},"status":200}"#;
    let iis = "2026-11-23 20:07:02 GET / k";
    for (name, line, head) in [
        ("traefik", traefik, ""),
        ("caddy", caddy, ""),
        ("iis", iis, "#Fields: date time cs-method cs-uri-stem cs(X-Api-Key)\n"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (report, code, errors) =
            replay(directory.path(), name, &format!("{head}{line}\n{line}\n"), rules);
        assert_eq!((code, &report["rejected"]), (Some(0), &json!(1)), "{name}: {errors} {report:#}");
    }
}

#[test]
fn requests_among_other_records_are_found() {
    let others = r#"{"level":"info","msg":"started","time":"2026-11-23T20:07:01Z"}"#;
    let text = wrapped(&format!("{}{ENVOY}", format!("{others}\n").repeat(60)), |line| {
        format!("2026-11-23T20:07:05.1Z stderr F {line}")
    });
    assert_replayed("among-others", &text);
}

#[test]
fn log_without_a_request_is_an_error_with_the_fields_that_were_found() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text, expected) in [
        (
            "no-target",
            "{\"time\":\"2026-11-23T20:07:02Z\",\"verb2\":\"GET\",\"where\":{\"to\":\"/a\"}}\n".repeat(3),
            "where.to",
        ),
        ("no-time", "{\"path\":\"/a\",\"begun\":5}\n".repeat(3), "begun"),
        ("cri", "2026-11-23T20:07:05Z stdout F {\"time\":1,\"inside\":\"/a\"}\n".to_owned(), "inside"),
        ("text", "nothing to see\n".to_owned(), "no JSON object"),
    ] {
        let (_, code, errors) = replay(directory.path(), name, &text, RULES);
        assert_eq!(code, Some(1), "{name}");
        assert!(errors.contains(expected) && errors.contains("looked for"), "{name}: {errors}");
        assert!(errors.contains("`request_uri`"), "{name}: {errors}");
    }
}
