//! Property: whatever the order in which the tasks of both ends run, bodies arrive whole and in order, or both ends see
//! an error. Nothing is left behind.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::tasks::Tasks;
use super::*;
use crate::http2::settings::CONNECTION_WINDOW;
use crate::http2::shared::Http2State;
use crate::http2::{ClientConnection, Reason};

/// How one direction of an exchange is used.
#[derive(Clone, Debug)]
struct Direction {
    /// Sizes of the pieces that are sent, in bytes.
    pieces: Vec<usize>,
    has_trailers: bool,
    /// Number of pieces after which the sender gives up.
    aborted_after: Option<usize>,
    /// Number of bytes after which the receiver gives up.
    unread_after: Option<usize>,
}

/// A request and its response.
#[derive(Clone, Debug)]
struct Exchange {
    request: Direction,
    response: Direction,
    /// Whether the response begins only after the request's end.
    is_late: bool,
}

/// What a receiver has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Whole,
    Failed,
    Abandoned,
}

fn direction() -> impl Strategy<Value = Direction> {
    let size = prop_oneof![4 => 0..200_usize, 2 => 200..9000_usize, 1 => 9000..70_000_usize];
    let pieces = proptest::collection::vec(size, 0..5);
    let aborted = proptest::option::weighted(0.15, 0..5_usize);
    let unread = proptest::option::weighted(0.15, 0..70_000_usize);
    (pieces, any::<bool>(), aborted, unread).prop_map(
        |(pieces, has_trailers, aborted_after, unread_after)| Direction {
            pieces,
            has_trailers,
            aborted_after,
            unread_after,
        },
    )
}

fn exchange_plan() -> impl Strategy<Value = Exchange> {
    (direction(), direction(), any::<bool>()).prop_map(|(request, response, is_late)| Exchange {
        request,
        response,
        is_late,
    })
}

/// Sends a body. Returns whether all of it was sent.
async fn send_body(mut stream: SendStream, plan: Direction) -> bool {
    let whole = body(plan.pieces.iter().sum());
    let mut position = 0;
    for (index, size) in plan.pieces.iter().enumerate() {
        if plan.aborted_after == Some(index) {
            stream.send_reset(Reason::INTERNAL_ERROR);
            return false;
        }
        if send(&mut stream, &whole[position..position + size], false).await.is_err() {
            return false;
        }
        position += size;
    }
    let end = if plan.has_trailers { stream.send_trailers(&trailers()) } else { stream.send_end() };
    end.is_ok()
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("x-end".parse().unwrap(), "1".parse().unwrap())])
}

/// Reads a body, whose data must be the beginning of what was sent.
async fn read_body(mut body_stream: ReceiveStream, plan: Direction) -> Outcome {
    let whole = body(plan.pieces.iter().sum());
    let mut position = 0;
    loop {
        if plan.unread_after.is_some_and(|after| position >= after) {
            return Outcome::Abandoned;
        }
        match poll_fn(|cx| body_stream.poll_data(cx)).await {
            Some(Ok(data)) => {
                assert!(whole[position..].starts_with(&data), "data is lost or in another order");
                position += data.len();
                body_stream.release(data.len());
            }
            Some(Err(_)) => return Outcome::Failed,
            None => {
                assert_eq!(position, whole.len(), "a body that has ended is whole");
                assert_eq!(body_stream.take_trailers().is_some(), plan.has_trailers);
                return Outcome::Whole;
            }
        }
    }
}

/// Serves a request as its plan states.
async fn respond(tasks: Tasks, plan: Exchange, request: Request<ReceiveStream>, mut responder: Responder) {
    let upload = request.into_body();
    if plan.is_late {
        read_body(upload, plan.request).await;
    } else {
        tasks.spawn(async move {
            read_body(upload, plan.request).await;
        });
    }
    if let Ok(stream) = responder.send_response(&Response::new(()), false) {
        send_body(stream, plan.response).await;
    }
}

/// Sends a request as its plan states, and checks the response.
async fn request(mut sender: RequestSender, number: usize, plan: Exchange) {
    let head = Request::post(format!("http://a.test/{number}")).body(()).unwrap();
    // Before the server's settings have arrived, it may refuse streams.
    poll_fn(|cx| sender.poll_connect_protocol(cx)).await.unwrap();
    poll_fn(|cx| sender.poll_ready(cx)).await.unwrap();
    let (response, stream) = sender.send_request(&head, false).unwrap();
    let mut upload = Box::pin(send_body(stream, plan.request.clone()));
    let expected = plan.response.clone();
    let mut download = Box::pin(async {
        match response.await {
            Ok(response) => read_body(response.into_body(), expected).await,
            Err(_) => Outcome::Failed,
        }
    });
    let mut was_sent = false;
    let both = poll_fn(|cx| {
        was_sent = was_sent || upload.as_mut().poll(cx).is_ready();
        download.as_mut().poll(cx)
    });
    let outcome = both.await;
    if !was_sent && outcome != Outcome::Abandoned {
        upload.await;
    }
    let directions = [&plan.request, &plan.response];
    let may_fail = directions.iter().any(|plan| plan.aborted_after.is_some() || plan.unread_after.is_some());
    assert!(outcome == Outcome::Whole || may_fail, "{outcome:?} {plan:?}");
    let is_aborted = plan.response.aborted_after.is_some_and(|after| after < plan.response.pieces.len());
    assert!(outcome != Outcome::Whole || !is_aborted, "an aborted response looks whole: {plan:?}");
}

fn assert_nothing_left(state: &Http2State) {
    assert!(state.streams.is_empty() && state.waiting.is_empty(), "streams are left");
    assert_eq!(
        (state.receive.left + i64::from(state.receive.released), state.receive.budget),
        (i64::from(CONNECTION_WINDOW), SETTINGS.shared_window),
        "the window was not given back"
    );
    assert!(state.output.is_flushed());
}

/// Plays exchanges with the tasks in an order that `seed` determines.
fn play(capacity: usize, plans: &[Exchange], seed: u64, max_streams: u32) {
    let tasks = Tasks::default();
    let (ours, theirs) = tokio::io::duplex(capacity);
    let settings = Http2Settings { max_streams, max_premature_resets: 1000, ..SETTINGS };
    let server = Rc::new(RefCell::new(ServerConnection::new(ours, settings)));
    let (sender, client) = ClientConnection::new(theirs, SETTINGS);
    let client = Rc::new(RefCell::new(client));
    let (serving, spawner, served) = (Rc::clone(&server), tasks.clone(), plans.to_vec());
    tasks.spawn(async move {
        poll_fn(|cx| serving.borrow_mut().poll_handshake(cx)).await.unwrap();
        let ended = poll_fn(|cx| {
            serving.borrow_mut().poll_requests(cx, |request, responder, _| {
                let number: usize = request.uri().path()[1..].parse().unwrap();
                spawner.spawn(respond(spawner.clone(), served[number].clone(), request, responder));
            })
        });
        ended.await.unwrap();
    });
    let driven = Rc::clone(&client);
    tasks.spawn(async move {
        poll_fn(|cx| std::pin::Pin::new(&mut *driven.borrow_mut()).poll(cx)).await.unwrap();
    });
    for (number, plan) in plans.iter().enumerate() {
        tasks.spawn(request(sender.clone(), number, plan.clone()));
    }
    let mut random = fastrand::Rng::with_seed(seed);
    tasks.run_in_order(|count| random.usize(..count));
    assert_eq!(tasks.len(), 2, "only the connections wait");
    assert_nothing_left(&server.borrow().state());
    assert_nothing_left(&client.borrow().state());
    // Both ends agree on the windows.
    let (theirs, ours) = (client.borrow().state().send_window, server.borrow().state().receive.left);
    assert_eq!(theirs, ours);
    drop(sender);
    tasks.run_in_order(|count| random.usize(..count));
    assert_eq!(tasks.len(), 0, "both connections have ended");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bodies_arrive_whole_or_fail_whatever_the_order_of_tasks(
        capacity in prop_oneof![16..100_usize, 100..5000_usize, Just(100_000)],
        plans in proptest::collection::vec(exchange_plan(), 1..8),
        seed in any::<u64>(),
        max_streams in 1..8_u32,
    ) {
        play(capacity, &plans, seed, max_streams);
    }
}
