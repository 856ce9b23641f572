//! Compares the script on a real server with its model: the same requests must get the same replies, call by call.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use fastrand::Rng;
use weir_limiter::leases::LeasePolicy;
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings};
use weir_store::protocol::{InstanceInfo, SCRIPT};
use weir_store::scheduler::LeaseScheduler;

use crate::instance;
use crate::model::Model;
use crate::plan::{LEASE, gcra};
use crate::servers::{Flavour, Server};

/// A reply of the server.
#[derive(Debug)]
enum RespValue {
    Nothing,
    Text(String),
    Number(i64),
    List(Vec<Self>),
}

/// One connection (RESP2).
struct RespConnection(BufReader<TcpStream>);

impl RespConnection {
    fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    fn call(&mut self, words: &[&str]) -> RespValue {
        let mut text = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| text += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        self.read()
    }

    /// Runs a script with these keys and arguments.
    fn evaluate(&mut self, script: &str, keys: &[String], args: &[String]) -> RespValue {
        let count = keys.len().to_string();
        let mut words = vec!["EVAL", script, &count];
        words.extend(keys.iter().chain(args).map(String::as_str));
        self.call(&words)
    }

    fn read(&mut self) -> RespValue {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            ":" => RespValue::Number(rest.parse().unwrap()),
            "$" if rest == "-1" => RespValue::Nothing,
            "$" => RespValue::Text(self.line()),
            "+" => RespValue::Text(rest.to_owned()),
            "*" => RespValue::List((0..rest.parse::<usize>().unwrap()).map(|_| self.read()).collect()),
            _ => panic!("{line}"),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

fn text(value: &RespValue) -> &str {
    if let RespValue::Text(text) = value { text } else { panic!("{value:?}") }
}

fn number(value: &RespValue) -> i64 {
    if let RespValue::Number(number) = value { *number } else { panic!("{value:?}") }
}

fn numbers(value: &RespValue) -> Vec<i64> {
    let RespValue::List(list) = value else { panic!("{value:?}") };
    list.iter().map(number).collect()
}

/// Generates a renewal of the part of one of four instances, or none.
fn random_renewal(rng: &mut Rng, now: u64) -> String {
    if rng.bool() {
        return "-".to_owned();
    }
    let (id, demand, claimed) = (rng.u8(1..5), rng.u32(0..5000), rng.u32(0..600_000));
    let valid = [0, 30_000, 60_000, 60_000][rng.usize(0..4)];
    let (absent, spent) = ([500, 4000][rng.usize(0..2)], u8::from(rng.u8(0..8) == 0));
    let deadline = now.saturating_add_signed(rng.i64(-200..2000));
    let sent = now - rng.u64(0..300);
    format!(
        "{id} {}.{:03} {valid} {absent} {claimed} {spent} {deadline} {sent}",
        demand / 1000,
        demand % 1000
    )
}

/// Generates a request of a random kind; about half of them concern counters that are nearly used up. Parts of some limits
/// are held back.
fn random_request(rng: &mut Rng, now: u64, granted: u64) -> String {
    let request = request_of_kind(rng, now, granted);
    match &request[..1] {
        kind @ ("b" | "w" | "s" | "r") if rng.bool() => {
            let settle = [20_000, 40_000, 70_000][rng.usize(0..3)];
            format!("{} {settle}{}", kind.to_uppercase(), &request[1..])
        }
        _ => request,
    }
}

fn request_of_kind(rng: &mut Rng, now: u64, granted: u64) -> String {
    let needed = [0, 1, 1, 3][rng.usize(0..4)];
    let wanted = needed + [0, 0, 5, 60][rng.usize(0..4)];
    let returned = [0, 0, 1, 7][rng.usize(0..4)];
    let (demanded, elapsed) = (rng.u64(0..90), rng.u64(0..900_000));
    let owed = [0, 0, 0, 2][rng.usize(0..4)];
    let demand = format!("{needed} {wanted} {demanded} {elapsed} {returned} {granted} {owed} 300000");
    let tail = format!("{} {}", [1, 3, 96][rng.usize(0..3)], needed.min(rng.u64(0..3)));
    let (priority, fair, weight) = (rng.u8(0..4), rng.u8(0..2), [1.0, 2.5][rng.usize(0..2)]);
    match rng.u8(0..8) {
        0 => format!(
            "b {} 40 {} {priority} {fair} {weight} {demand} {tail}",
            [1000, 10_000, 100_000][rng.usize(0..3)],
            [0, 150_000, 195_000][rng.usize(0..3)]
        ),
        1 => {
            let start = now / 2_000_000 * 2_000_000;
            let marks = [start, start + 2_000_000, start + 4_000_000].map(|mark| mark.to_string());
            format!("w 60 400000 {priority} {weight} {demand} {} {tail}", marks.join(" "))
        }
        2 => {
            let length = [30_000, 3_000_000][rng.usize(0..2)];
            format!("s 50 {length} 100 {} {priority} {weight} {demand} {tail}", length / 100)
        }
        3 => format!("x 20000 90000 {}", [-1, 0, 5000][rng.usize(0..3)]),
        4 => {
            format!("r 5 {} 30 1000000 {priority} {weight} {demand} {tail}", [1000, 400_000][rng.usize(0..2)])
        }
        5 => {
            let (instance, used, held, sent) =
                (rng.u8(1..5), rng.u8(0..9), rng.u8(0..15), rng.u64(..1 << 40));
            format!("p 20 900000 {instance} {used} {wanted} {held} {sent}")
        }
        _ => urgent_request(rng),
    }
}

/// Generates a request of waiting requests and nothing else, which the fast path of the script decides.
fn urgent_request(rng: &mut Rng) -> String {
    let interval = [1000, 10_000, 100_000, 400_000][rng.usize(0..4)];
    let valid = [0, 20_000, 190_000][rng.usize(0..3)];
    let (needed, demanded, elapsed) = (rng.u8(1..4), rng.u8(0..9), rng.u64(0..900_000));
    let priority = [0, 1, 1, 1, 2, 3][rng.usize(0..6)];
    format!(
        "b {interval} 40 {valid} {priority} 0 1 {needed} {needed} {demanded} {elapsed} 0 0 0 300000 3 {needed}"
    )
}

#[test]
fn script_on_redis_matches_its_model() {
    compare_with_model(&Flavour::Redis.start());
}

#[test]
fn script_on_valkey_matches_its_model() {
    compare_with_model(&Flavour::Valkey.start());
}

fn compare_with_model(server: &Server) {
    let mut connection = RespConnection::open(server);
    let mut model = Model::default();
    let mut rng = Rng::with_seed(7);
    let (mut known, mut run, mut granted, mut replies) = ("-".to_owned(), 1_u32, 0, 0);
    let (mut parts, mut held) = (0, 0);
    for call in 0..4000 {
        let mut kinds = Vec::new();
        let mut keys = vec!["{weir.0}:generation".to_owned(), "{weir.0}:parts".to_owned()];
        for _ in 0..rng.usize(1..5) {
            let kind = random_request(&mut rng, server_time(&mut connection), granted);
            // Each kind has its own counters, as each limit has. A call has each counter once.
            let key = format!("{{weir.0}}:{}{}", kind[..1].to_lowercase(), rng.u8(0..4));
            if !keys.contains(&key) {
                keys.push(key);
                kinds.push(kind);
            }
        }
        match rng.u32(0..400) {
            0 => run += 1,
            1 => {
                connection.call(&["FLUSHALL"]);
                model.flush();
            }
            2 => known = "-".to_owned(),
            _ => {}
        }
        let renewal = random_renewal(&mut rng, server_time(&mut connection));
        let mut args = vec![known.clone(), run.to_string(), format!("g{call}"), renewal];
        args.extend(kinds);
        let RespValue::List(reply) = connection.evaluate(SCRIPT, &keys, &args) else {
            panic!("expected a list")
        };
        let at: u64 = text(&reply[1]).parse().unwrap();
        let (generation, part, expected) = model.call(&keys, &args, at);
        assert_eq!(text(&reply[0]), generation, "call {call}");
        assert_eq!(number(&reply[2]), part, "call {call}: {}", args[3]);
        parts += u32::from(part > 0);
        for ((reply, expected), question) in reply[3..].iter().zip(&expected).zip(&args[4..]) {
            assert_eq!(numbers(reply), expected, "call {call}: {question}");
            replies += 1;
            held += u32::from(question.starts_with(['B', 'W', 'S', 'R']) && expected[2] == 250_000);
        }
        (known, granted) = (generation, if rng.bool() { at } else { granted });
    }
    assert!(
        replies > 8000 && parts > 100 && held > 100,
        "{replies} replies, {parts} parts, {held} held back"
    );
}

/// No loss of data, and one interval for each counter, so that nearly all requests are decided by the fast path: bursts, slices, rejections,
/// parts reserved for higher priorities, and units that are given back in between.
#[test]
fn fast_path_matches_the_model() {
    let server = Flavour::Redis.start();
    let mut connection = RespConnection::open(&server);
    let mut model = Model::default();
    let mut rng = Rng::with_seed(11);
    let keys = ["{weir.0}:generation", "{weir.0}:parts"].map(str::to_owned);
    let (mut granted_at, mut granted, mut rejected) = (0, 0, 0);
    for call in 0..6000 {
        let counter = rng.usize(0..6);
        let interval = [200, 1000, 2000, 5000, 50_000, 400_000][counter];
        let (valid, priority) = ([0, 20_000, 190_000][rng.usize(0..3)], [0, 1, 1, 1, 2, 3][rng.usize(0..6)]);
        let (needed, demanded, elapsed) = (rng.u8(1..4), rng.u8(0..9), rng.u64(0..900_000));
        let (returned, wanted) = if rng.u8(0..12) == 0 { (1, needed + 5) } else { (0, needed) };
        let question = format!(
            "b {interval} 40 {valid} {priority} 0 1 {needed} {wanted} {demanded} {elapsed} {returned} {granted_at} 0 300000 3 {needed}"
        );
        let keys = [&keys[..], &[format!("{{weir.0}}:b{counter}")]].concat();
        let args = ["-", "1", "g", "-", &question].map(str::to_owned);
        let RespValue::List(reply) = connection.evaluate(SCRIPT, &keys, &args) else {
            panic!("expected a list")
        };
        let at: u64 = text(&reply[1]).parse().unwrap();
        let (_, _, expected) = model.call(&keys, &args, at);
        assert_eq!(numbers(&reply[3]), expected[0], "call {call}: {question}");
        granted += u32::from(expected[0][0] > 0);
        rejected += u32::from(expected[0][0] == 0);
        granted_at = if rng.bool() { at } else { granted_at };
    }
    assert!(granted > 500 && rejected > 500, "{granted} granted, {rejected} rejected");
}

/// Without the files behind the fast path, the script replies only if that has decided everything.
#[test]
fn fast_path_decides_requests_of_waiting_requests() {
    let (fast_path, _) = SCRIPT.split_once("-- Parts of the limits").expect("the file behind the fast path");
    let server = Flavour::Redis.start();
    let mut connection = RespConnection::open(&server);
    for priority in 0..4 {
        let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [17, 42] });
        let quota = gcra(10, 3);
        let policy = LeasePolicy { priority, ..LEASE };
        let check = instance::check(&limiter, (quota, policy), ChargeTiming::OnArrival);
        let instance = InstanceInfo { id: 1, weight: 1.0, instances: 96, clock_lead: 0 };
        let mut scheduler = LeaseScheduler::new(instance, 1);
        let now = Timestamp::EPOCH.saturating_add(Duration::from_secs(1_700_000_000));
        assert_eq!(instance::decide(&limiter, &mut scheduler, &check, now), None);
        let batch = scheduler.next_batch(&limiter, now, &mut |_| false).expect("a query");
        let call = batch.call(&format!("priority{priority}"));
        let args = call.arguments(1, "g".to_owned());
        let granted: Vec<_> = (0..4)
            .map(|_| match connection.evaluate(fast_path, &call.keys, &args) {
                RespValue::List(reply) => numbers(&reply[3])[0],
                reply => panic!("{:?} was not decided: {reply:?}", batch.encoded),
            })
            .collect();
        assert_eq!(granted, [1, 1, 1, 0]);
    }
}

#[test]
fn ban_duration_doubles_across_the_fleet() {
    let mut model = Model::default();
    let mut ask = |began: i64, second: u64| {
        let question = format!("x 10000000 60000000 {began}");
        let reply = model.ask("a:ban", ["-", "1", "g"], &question, second * 1_000_000).1;
        (reply[0], reply[2] / 1_000_000)
    };
    assert_eq!(ask(-1, 1_000), (0, 0));
    assert_eq!(ask(0, 1_000), (0, 10));
    assert_eq!(ask(0, 1_004), (0, 6), "a running ban is not extended");
    assert_eq!(ask(-1, 1_009), (0, 1), "other instances get the remaining time");
    assert_eq!(ask(0, 1_010), (1, 20), "the next ban is twice as long, whichever instance begins it");
    assert_eq!(ask(2_000_000, 1_090), (2, 38), "a late report within a minute after the end doubles the ban");
    assert_eq!(ask(0, 1_130), (3, 60), "at most the maximum duration");
    assert_eq!(ask(0, 1_251), (0, 10), "the history of bans has expired");
}

fn server_time(connection: &mut RespConnection) -> u64 {
    let RespValue::List(parts) = connection.call(&["TIME"]) else { panic!("expected the time") };
    let [seconds, micros] = [0, 1].map(|part| text(&parts[part]).parse::<u64>().unwrap());
    seconds * 1_000_000 + micros
}
