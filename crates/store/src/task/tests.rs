//! The task with a server that responds as a test wants.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::LocalSet;
use weir_telemetry::metrics::Metrics;

use super::*;
use crate::remote::channel::ServerAddress;
use crate::settings::{Credentials, SingleServer, Topology};
use weir_limiter::leases::LeaseOutcome;
use weir_limiter::testing::{NOW, limiter};

/// A server. Queries about leases get the replies that the test sends.
struct FakeServer {
    address: ServerAddress,
    replies: std_mpsc::Sender<&'static str>,
}

/// Reads a command, and returns its words.
fn read_command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut line = |prefix: char| {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        Some(line.trim_end().trim_start_matches(prefix).to_owned())
    };
    let words = line('*')?.parse().ok()?;
    (0..words).map(|_| line('$').and_then(|_| line('\0'))).collect()
}

impl FakeServer {
    /// Starts a server. The receiver gets the number of the connection of each query about leases.
    fn start() -> (Self, mpsc::Receiver<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port());
        let (replies, to_send) = std_mpsc::channel();
        let (queried, queries) = mpsc::channel(1000);
        // Ends with the test.
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                serve(stream.unwrap(), number, &to_send, &queried);
            }
        });
        (Self { address, replies }, queries)
    }

    /// Runs the task of a limiter with this server, beside a test.
    async fn run<T>(&self, limiter: Limiter, test: impl AsyncFnOnce(&Limiter, StoreHandle) -> T) -> T {
        let limiter = Arc::new(limiter);
        let (handle, queue) = StoreHandle::new(&limiter);
        let settings = StoreSettings {
            topology: Topology::Single(SingleServer { address: self.address.clone(), db: 0 }),
            credentials: Credentials::default(),
            tls: None,
            prefix: "weir".into(),
            timeout: Duration::from_secs(30),
            registration: Duration::from_secs(60),
            weight: 1.try_into().unwrap(),
            instance: None,
            regions: None,
        };
        let resources = StoreTaskResources {
            limiter: Arc::clone(&limiter),
            clock: Arc::new(Clock::start()),
            handle: handle.clone(),
            metrics: Metrics::new(&[]).store(),
            queue,
            secret: [1, 2],
            instance_id: 1,
        };
        let test = async {
            until_reachable(&handle).await;
            test(&limiter, handle.clone()).await
        };
        let task = run(&settings, resources, |_| {});
        LocalSet::new()
            .run_until(async {
                tokio::select! {
                    result = test => result,
                    () = task => panic!("the task has ended"),
                }
            })
            .await
    }
}

async fn until_reachable(handle: &StoreHandle) {
    while handle.is_unreachable() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Serves one connection.
fn serve(
    mut stream: TcpStream,
    number: usize,
    to_send: &std_mpsc::Receiver<&'static str>,
    queried: &mpsc::Sender<usize>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(words) = read_command(&mut reader) {
        let reply = match &*words[0] {
            "INFO" => "$12\r\nrun_id:12345\r\n",
            "EVALSHA" if words[3].contains("fleet") => {
                "*2\r\n$32\r\n0123456789abcdef0123456789abcdef\r\n:1\r\n"
            }
            "EVALSHA" => {
                let _ = queried.try_send(number);
                let Ok(reply) = to_send.recv() else { return };
                reply
            }
            _ => "+OK\r\n",
        };
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// Starts a query for which a request waits.
fn query(
    limiter: &Limiter,
    check: &weir_limiter::Check,
    handle: &StoreHandle,
) -> oneshot::Receiver<LeaseResponse> {
    assert_eq!(limiter.acquire_units(check, NOW), LeaseOutcome::Requested(true));
    let deadline = Instant::now() + Duration::from_secs(60);
    handle.wait_for_response(limiter.shared_counter(check), true, deadline).unwrap()
}

#[tokio::test]
async fn reply_without_a_grant_for_each_query_closes_the_connection() {
    let (server, mut queries) = FakeServer::start();
    let (limiter, check) = limiter();
    server
        .run(limiter, async |limiter, handle| {
            let response = query(limiter, &check, &handle);
            assert_eq!(queries.recv().await, Some(0));
            server.replies.send("*3\r\n$1\r\n1\r\n$1\r\n1\r\n:-1\r\n").unwrap();
            assert!(response.await.is_err(), "it is no response");
            until_reachable(&handle).await;
            let _response = query(limiter, &check, &handle);
            assert_eq!(queries.recv().await, Some(1), "on another connection");
        })
        .await;
}

#[tokio::test]
async fn requests_that_wait_for_a_limit_which_is_removed_are_decided_again() {
    let (server, mut queries) = FakeServer::start();
    let (limiter, check) = limiter();
    let other = weir_limiter::Check { key: KeyHasher::new([3, 4]).hash(b"b"), ..check };
    server
        .run(limiter, async |limiter, handle| {
            let sent = query(limiter, &check, &handle);
            assert_eq!(queries.recv().await, Some(0));
            let queued = query(limiter, &other, &handle);
            limiter.retire_others(&[], NOW);
            let grant =
                "*4\r\n$1\r\n1\r\n$1\r\n1\r\n:-1\r\n*6\r\n:1\r\n:1000000\r\n:0\r\n:0\r\n:0\r\n:50\r\n";
            server.replies.send(grant).unwrap();
            assert_eq!(sent.await, Ok(LeaseResponse::Units));
            assert_eq!(queued.await, Ok(LeaseResponse::Units));
        })
        .await;
}
