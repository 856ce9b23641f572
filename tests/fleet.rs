//! Shared limits: the store's script beside its model, and fleets of instances in virtual time.

#[path = "fleet/adversary.rs"]
mod adversary;
#[path = "fleet/model.rs"]
mod model;
#[path = "fleet/world.rs"]
mod world;
