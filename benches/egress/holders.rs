//! Clients that hold many calls open, in a process of their own that obeys lines of its standard input.
//!
//! `open` opens the connections and makes a call without a limit on each; `call` sends the calls that wait; `drop` closes
//! all connections. The process prints the command when it is done. HTTP/2 calls are numbered, and the next connection
//! sends after the peer has read everything from the one before, so the numbers are the order of arrival.

use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use crate::http1;

/// Protocol of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Settings of the process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HolderSettings {
    pub(crate) target: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) connections: usize,
    /// Calls on each connection. Over HTTP/1.1 one.
    pub(crate) calls: usize,
}

/// An open HTTP/2 connection.
struct Http2Connection {
    sender: SendRequest<Bytes>,
    pings: PingPong,
    driver: JoinHandle<()>,
}

/// Open connections, and the tasks that await responses.
#[derive(Default)]
struct Holders {
    http1: Vec<TcpStream>,
    http2: Vec<Http2Connection>,
    awaited: Vec<JoinHandle<()>>,
}

/// Obeys commands until standard input is closed.
#[expect(clippy::print_stdout, reason = "the output of the role")]
pub(crate) fn run(settings: HolderSettings) {
    let (sender, mut commands) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let mut holders = Holders::default();
        while let Some(command) = commands.recv().await {
            match command.as_str() {
                "open" => holders.open(settings).await.unwrap(),
                "call" => holders.call(settings).await.unwrap(),
                _ => holders.close().await,
            }
            println!("{command}");
        }
    });
}

impl Holders {
    async fn open(&mut self, settings: HolderSettings) -> io::Result<()> {
        for _ in 0..settings.connections {
            let mut stream = TcpStream::connect(settings.target).await?;
            stream.set_nodelay(true)?;
            match settings.protocol {
                Protocol::Http1 => {
                    stream.write_all(b"GET /free HTTP/1.1\r\nhost: provider\r\n\r\n").await?;
                    http1::read_response(&mut stream, &mut BytesMut::new()).await?;
                    self.http1.push(stream);
                }
                Protocol::Http2 => {
                    self.http2.push(Http2Connection::open(stream).await.map_err(io::Error::other)?);
                }
            }
        }
        Ok(())
    }

    async fn call(&mut self, settings: HolderSettings) -> io::Result<()> {
        for mut stream in std::mem::take(&mut self.http1) {
            stream.write_all(b"GET /call HTTP/1.1\r\nhost: provider\r\n\r\n").await?;
            self.awaited.push(tokio::task::spawn_local(async move {
                // The connection stays open until `drop`.
                let _ = http1::read_response(&mut stream, &mut BytesMut::new()).await;
                std::future::pending::<()>().await;
            }));
        }
        let mut number = 0;
        for connection in &mut self.http2 {
            for _ in 0..settings.calls {
                let response = connection.send("/call", Some(number)).await.map_err(io::Error::other)?;
                self.awaited.push(tokio::task::spawn_local(async move {
                    // A failed call shows at the provider.
                    let _ = response.await;
                }));
                number += 1;
            }
            connection.pings.ping(Ping::opaque()).await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    async fn close(&mut self) {
        for connection in std::mem::take(&mut self.http2) {
            connection.driver.abort();
            let _ = connection.driver.await;
        }
        for task in std::mem::take(&mut self.awaited) {
            task.abort();
            let _ = task.await;
        }
        self.http1.clear();
    }
}

impl Http2Connection {
    async fn open(stream: TcpStream) -> Result<Self, h2::Error> {
        let (sender, mut connection) = h2::client::handshake(stream).await?;
        let pings = connection.ping_pong().ok_or(h2::Reason::INTERNAL_ERROR)?;
        let driver = tokio::task::spawn_local(async move {
            // The end of a connection shows in its calls.
            let _ = connection.await;
        });
        let mut opened = Self { sender, pings, driver };
        opened.send("/free", None).await?.await?;
        Ok(opened)
    }

    async fn send(
        &mut self,
        path: &str,
        number: Option<u64>,
    ) -> Result<h2::client::ResponseFuture, h2::Error> {
        let mut request = http::Request::get(format!("http://provider{path}"));
        if let Some(number) = number {
            request = request.header("x-sequence", number);
        }
        let mut ready = self.sender.clone().ready().await?;
        let (response, _) = ready.send_request(request.body(()).unwrap(), true)?;
        Ok(response)
    }
}
