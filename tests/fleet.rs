//! Shared limits: the store's script compared with its model, and fleets of instances in virtual time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]

#[path = "fleet/adversary.rs"]
mod adversary;
#[path = "fleet/exhaustive.rs"]
mod exhaustive;
#[path = "fleet/fairness.rs"]
mod fairness;
#[path = "fleet/instance.rs"]
mod instance;
#[path = "fleet/limit.rs"]
mod limit;
#[path = "fleet/model.rs"]
mod model;
#[path = "fleet/partitions.rs"]
mod partitions;
#[path = "fleet/parts_attack.rs"]
mod parts_attack;
#[path = "fleet/permits.rs"]
mod permits;
#[path = "fleet/plan.rs"]
mod plan;
#[path = "fleet/regions.rs"]
mod regions;
#[path = "fleet/runs.rs"]
mod runs;
#[path = "fleet/script.rs"]
mod script;
#[path = "store/servers.rs"]
#[expect(dead_code, reason = "the tests of the store's client use the rest")]
mod servers;
#[path = "fleet/stock.rs"]
mod stock;
#[path = "store/support.rs"]
#[expect(dead_code, reason = "the tests of the program use the rest")]
mod support;
#[path = "fleet/world.rs"]
mod world;
