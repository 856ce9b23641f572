//! Many waiting requests.

use std::net::SocketAddr;

use http::Request;
use tokio::net::TcpStream;

use super::{Gate, paths, until_waiting};

const CONNECTIONS: usize = 100;
const STREAMS: usize = 100;

/// Opens connections with HTTP/2, and sends requests on each. Returns the status codes of the responses when all have
/// arrived, or keeps the connections until `ended`.
async fn send_streams(
    address: SocketAddr,
    connection: usize,
    mut ended: tokio::sync::watch::Receiver<bool>,
) -> Vec<u16> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, driver) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(driver);
    let mut responses = Vec::new();
    for number in 0..STREAMS {
        let mut sender = sender.clone().ready().await.unwrap();
        let request = Request::get(format!("http://{address}/{connection}/{number}")).body(()).unwrap();
        responses.push(sender.send_request(request, true).unwrap().0);
    }
    let statuses = async {
        let mut statuses = Vec::new();
        for response in responses {
            statuses.push(response.await.unwrap().status().as_u16());
        }
        statuses
    };
    let result = tokio::select! {
        statuses = statuses => statuses,
        _ = ended.wait_for(|ended| *ended) => Vec::new(),
    };
    driver.abort();
    result
}

/// Sends all requests in the background. The sender ends those that still wait.
fn send_all(
    address: SocketAddr,
) -> (tokio::sync::watch::Sender<bool>, std::thread::JoinHandle<Vec<Vec<u16>>>) {
    let (end, ended) = tokio::sync::watch::channel(false);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..CONNECTIONS)
                .map(|connection| tokio::spawn(send_streams(address, connection, ended.clone())))
                .collect();
            let mut all = Vec::new();
            for task in tasks {
                all.push(task.await.unwrap());
            }
            all
        })
    });
    (end, thread)
}

#[test]
fn ten_thousand_waiting_streams_are_admitted_in_order() {
    let mut gate = Gate::start("throttle: { wait: { max: 1h, queue: 20000 } }");
    let (_end, thread) = send_all(gate.weir.address());
    until_waiting(&gate.weir, "q", CONNECTIONS * STREAMS);
    gate.open();
    let statuses = thread.join().unwrap().concat();
    assert_eq!(statuses, vec![200; CONNECTIONS * STREAMS]);
    // The order of arrival is known for the streams of a connection.
    let mut last = [None; CONNECTIONS];
    for path in paths(&gate.origin, 1) {
        let mut numbers = path[1..].split('/').map(|number| number.parse::<usize>().unwrap());
        let (connection, number) = (numbers.next().unwrap(), numbers.next());
        assert!(last[connection] < number, "{number:?} of {connection} came after {:?}", last[connection]);
        last[connection] = number;
    }
    until_waiting(&gate.weir, "q", 0);
}

#[test]
fn ten_thousand_waiting_streams_leave_when_their_clients_disconnect() {
    let gate = Gate::start("throttle: { wait: { max: 1h, queue: 20000 } }");
    let (end, thread) = send_all(gate.weir.address());
    until_waiting(&gate.weir, "q", CONNECTIONS * STREAMS);
    end.send(true).unwrap();
    thread.join().unwrap();
    until_waiting(&gate.weir, "q", 0);
    assert_eq!(gate.origin.requests().len(), 1);
}
