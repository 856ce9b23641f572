//! Shared limits: the store's script beside its model, and fleets of instances in virtual time.

#[path = "store/adversary.rs"]
mod adversary;
#[path = "store/fleet.rs"]
mod fleet;
#[path = "store/model.rs"]
mod model;
