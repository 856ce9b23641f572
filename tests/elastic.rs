//! Elastic limits: what prices promise, and how the controller fares with a simulated upstream.

#[path = "elastic/prices.rs"]
mod prices;
#[path = "elastic/simulation.rs"]
mod simulation;
#[path = "elastic/upstream.rs"]
mod upstream;
