//! Callers: HTTP/1.1 clients with keep-alive that make calls at given times, in a process of their own.
//!
//! A call that is due takes an idle connection, or opens another one. Its time counts from when it was due, so that a
//! caller that falls behind cannot hide a wait.

#[path = "callers/outcomes.rs"]
pub(crate) mod outcomes;
#[path = "callers/schedule.rs"]
pub(crate) mod schedule;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use self::outcomes::{CallResult, GroupReport};
use self::schedule::{Demand, Schedule};
use crate::http1;

/// Pause of a caller after a rejection.
const PAUSE: Duration = Duration::from_millis(100);

/// Callers with the same value of `x-tenant`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) tenant: String,
    pub(crate) demand: Demand,
}

/// Settings of the process. Durations are in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CallerSettings {
    /// Addresses that take calls in turn.
    pub(crate) targets: Vec<SocketAddr>,
    pub(crate) groups: Vec<Group>,
    /// Time before the measurement.
    pub(crate) warm_up: f64,
    /// Measured time.
    pub(crate) measured: f64,
    /// Maximum time for which calls are awaited after the measurement.
    pub(crate) grace: f64,
    /// Maximum number of connections.
    pub(crate) max_connections: usize,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
}

/// State of the process.
#[derive(Debug)]
struct Callers {
    settings: CallerSettings,
    started: Instant,
    idle: Vec<RefCell<Vec<Connection>>>,
    opened: RefCell<usize>,
    unfinished: RefCell<usize>,
    reports: Vec<RefCell<GroupReport>>,
    requests: Vec<Vec<u8>>,
}

/// Makes all calls and prints the reports of the groups as one line of JSON.
#[expect(clippy::print_stdout, reason = "the output of the role")]
pub(crate) fn run(settings: CallerSettings) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let callers = Rc::new(Callers::new(settings));
    LocalSet::new().block_on(&runtime, callers.clone().make_calls());
    let reports: Vec<GroupReport> = callers.reports.iter().map(|report| report.borrow().clone()).collect();
    println!("{}", serde_json::to_string(&reports).unwrap());
}

impl Callers {
    fn new(settings: CallerSettings) -> Self {
        let request = |group: &Group| {
            format!("GET /call HTTP/1.1\r\nhost: provider\r\nx-tenant: {}\r\n\r\n", group.tenant).into_bytes()
        };
        Self {
            started: Instant::now(),
            idle: settings.targets.iter().map(|_| RefCell::default()).collect(),
            opened: RefCell::new(0),
            unfinished: RefCell::new(0),
            reports: settings.groups.iter().map(|_| RefCell::default()).collect(),
            requests: settings.groups.iter().map(request).collect(),
            settings,
        }
    }

    async fn make_calls(self: Rc<Self>) {
        for (number, group) in self.settings.groups.iter().enumerate() {
            match group.demand {
                Demand::Random(_) | Demand::Bursts(_) => {
                    tokio::task::spawn_local(Rc::clone(&self).make_scheduled_calls(number, group.demand));
                }
                Demand::Closed(callers) => {
                    for caller in 0..callers {
                        tokio::task::spawn_local(Rc::clone(&self).call_repeatedly(number, caller));
                    }
                }
            }
        }
        let end = self.settings.warm_up + self.settings.measured;
        self.sleep_until(end).await;
        while self.elapsed() < end + self.settings.grace && *self.unfinished.borrow() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Calls without a response count as failed, which makes a hanging call visible.
        let unfinished = *self.unfinished.borrow() as u64;
        if let Some(report) = self.reports.first() {
            report.borrow_mut().failed += unfinished;
        }
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    async fn sleep_until(&self, second: f64) {
        let at = self.started + Duration::from_secs_f64(second);
        tokio::time::sleep_until(at.into()).await;
    }

    fn is_measured(&self, due: f64) -> bool {
        let end = self.settings.warm_up + self.settings.measured;
        (self.settings.warm_up..end).contains(&due)
    }

    async fn make_scheduled_calls(self: Rc<Self>, group: usize, demand: Demand) {
        let mut schedule = Schedule::new(demand);
        let mut turn = group;
        while schedule.next() < self.settings.warm_up + self.settings.measured {
            self.sleep_until(schedule.next()).await;
            while schedule.next() <= self.elapsed() {
                turn = (turn + 1) % self.settings.targets.len();
                let call = Rc::clone(&self).make_scheduled_call(group, turn, schedule.next());
                tokio::task::spawn_local(call);
                schedule.advance();
            }
        }
    }

    async fn make_scheduled_call(self: Rc<Self>, group: usize, target: usize, due: f64) {
        let counts = usize::from(self.is_measured(due));
        *self.unfinished.borrow_mut() += counts;
        let result = match self.connection(target).await {
            Ok(Some(connection)) => self.call(connection, group, target).await,
            Ok(None) => CallResult::Unsent,
            Err(_) => CallResult::Failed,
        };
        *self.unfinished.borrow_mut() -= counts;
        self.record(group, result, due);
    }

    async fn call_repeatedly(self: Rc<Self>, group: usize, caller: usize) {
        let target = caller % self.settings.targets.len();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
        while self.elapsed() < self.settings.warm_up + self.settings.measured {
            let due = self.elapsed();
            let result = match self.connection(target).await {
                Ok(Some(connection)) => self.call(connection, group, target).await,
                Ok(None) => CallResult::Unsent,
                Err(_) => CallResult::Failed,
            };
            self.record(group, result, due);
            if !matches!(result, CallResult::Response(head) if head.status < 300) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Returns an idle connection or a new one. `None` if there are too many.
    async fn connection(&self, target: usize) -> io::Result<Option<Connection>> {
        if let Some(connection) = self.idle[target].borrow_mut().pop() {
            return Ok(Some(connection));
        }
        if *self.opened.borrow() >= self.settings.max_connections {
            return Ok(None);
        }
        *self.opened.borrow_mut() += 1;
        let stream = TcpStream::connect(self.settings.targets[target]).await?;
        stream.set_nodelay(true)?;
        Ok(Some(Connection { stream, buffer: BytesMut::with_capacity(1024) }))
    }

    async fn call(&self, mut connection: Connection, group: usize, target: usize) -> CallResult {
        let Connection { stream, buffer } = &mut connection;
        let sent = stream.write_all(&self.requests[group]).await;
        let response = match sent {
            Ok(()) => http1::read_response(stream, buffer).await,
            Err(error) => Err(error),
        };
        let Ok(head) = response else {
            *self.opened.borrow_mut() -= 1;
            return CallResult::Failed;
        };
        self.idle[target].borrow_mut().push(connection);
        CallResult::Response(head)
    }

    fn record(&self, group: usize, result: CallResult, due: f64) {
        if self.is_measured(due) {
            let wait = ((self.elapsed() - due) * 1e6) as u64;
            self.reports[group].borrow_mut().add(result, wait);
        }
    }
}
