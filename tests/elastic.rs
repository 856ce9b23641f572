//! Elastic limits: the guarantees of costs, and the behaviour of the controller with a simulated upstream.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]

#[path = "elastic/costs.rs"]
mod costs;
#[path = "elastic/simulation.rs"]
mod simulation;
#[path = "elastic/upstream.rs"]
mod upstream;
