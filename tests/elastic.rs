//! Elastic limits and adaptive concurrency limits: the guarantees of costs, and the behaviour of the controllers with
//! simulated upstreams.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]

#[path = "elastic/concurrency.rs"]
mod concurrency;
#[path = "elastic/costs.rs"]
mod costs;
#[path = "elastic/queue.rs"]
mod queue;
#[path = "elastic/rivals.rs"]
mod rivals;
#[path = "elastic/simulation.rs"]
mod simulation;
#[path = "elastic/upstream.rs"]
mod upstream;
