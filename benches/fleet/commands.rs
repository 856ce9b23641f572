//! Instances that send commands to Redis for each request, as other rate limiters do.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

/// Maximum number of requests of one instance that wait for Redis; more are rejected.
const MAX_WAITING: usize = 2048;

/// Commands for a request that is counted in a fixed window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandStyle {
    /// One `INCR`.
    Incr,
    /// `INCRBY` and `EXPIRE`, as envoyproxy/ratelimit sends them.
    IncrByAndExpire,
}

/// One instance: the sending end of its connection's queue.
#[derive(Debug)]
pub(crate) struct CommandInstance(mpsc::Sender<CountRequest>);

#[derive(Debug)]
struct CountRequest {
    key: u32,
    second: u64,
    counted: oneshot::Sender<u64>,
}

impl CommandInstance {
    /// Counts a request in this second. Returns `None` if the queue is full.
    pub(crate) fn count(&self, key: u32, second: u64) -> Option<oneshot::Receiver<u64>> {
        let (counted, count) = oneshot::channel();
        self.0.try_send(CountRequest { key, second, counted }).ok().map(|()| count)
    }
}

/// Starts `count` instances, each with its own connection; one thread runs all of them.
pub(crate) fn start_fleet(count: usize, style: CommandStyle, server: SocketAddr) -> Vec<CommandInstance> {
    let (instances, queues): (Vec<_>, Vec<_>) = (0..count)
        .map(|_| {
            let (sender, queue) = mpsc::channel(MAX_WAITING);
            (CommandInstance(sender), queue)
        })
        .unzip();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let local = LocalSet::new();
        for queue in queues {
            local.spawn_local(serve(queue, style, server));
        }
        runtime.block_on(local);
    });
    instances
}

/// Pipelines the commands of all queued requests, and passes the count in each reply to its request.
async fn serve(mut queue: mpsc::Receiver<CountRequest>, style: CommandStyle, server: SocketAddr) {
    let mut stream = TcpStream::connect(server).await.expect("a connection");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    let mut waiting: VecDeque<oneshot::Sender<u64>> = VecDeque::new();
    let (mut replies, mut commands) = (Vec::new(), String::new());
    // With EXPIRE, every second reply belongs to that command and is skipped.
    let mut is_count = true;
    loop {
        tokio::select! {
            asked = queue.recv(), if waiting.len() < MAX_WAITING => {
                let Some(asked) = asked else { return };
                commands.clear();
                let mut next = Some(asked);
                while let Some(CountRequest { key, second, counted }) = next {
                    write_commands(&mut commands, style, &format!("c:{key}:{second}"));
                    waiting.push_back(counted);
                    next = queue.try_recv().ok();
                }
                stream.write_all(commands.as_bytes()).await.expect("sent");
            }
            read = stream.read_buf(&mut replies) => {
                assert!(read.expect("a reply") > 0, "the server has closed the connection");
                let mut done = 0;
                while let Some(end) = replies[done..].iter().position(|byte| *byte == b'\n') {
                    let line = std::str::from_utf8(&replies[done + 1..done + end - 1]).expect("a number");
                    if is_count {
                        let counted = waiting.pop_front().expect("a request");
                        let _ = counted.send(line.parse().expect("a number"));
                    }
                    is_count = !is_count || matches!(style, CommandStyle::Incr);
                    done += end + 1;
                }
                replies.drain(..done);
            }
        }
    }
}

fn write_commands(commands: &mut String, style: CommandStyle, key: &str) {
    let length = key.len();
    let _ = match style {
        CommandStyle::Incr => write!(commands, "*2\r\n$4\r\nINCR\r\n${length}\r\n{key}\r\n"),
        CommandStyle::IncrByAndExpire => write!(
            commands,
            "*3\r\n$6\r\nINCRBY\r\n${length}\r\n{key}\r\n$1\r\n1\r\n*3\r\n$6\r\nEXPIRE\r\n${length}\r\n{key}\r\n$1\r\n1\r\n"
        ),
    };
}
