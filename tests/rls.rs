//! Envoy's rate limit service without the network: documents, matching, counting and responses, compared with the
//! behaviour of envoyproxy/ratelimit.

#[path = "rls/counting.rs"]
mod counting;
#[path = "rls/documents.rs"]
mod documents;
#[path = "rls/fixture.rs"]
mod fixture;
#[path = "rls/import_fields.rs"]
mod import_fields;
#[path = "rls/import_leaves.rs"]
mod import_leaves;
#[path = "rls/import_policies.rs"]
mod import_policies;
#[path = "rls/imported.rs"]
mod imported;
#[path = "rls/matching.rs"]
mod matching;
#[path = "rls/model.rs"]
mod model;
#[path = "rls/modes.rs"]
mod modes;
#[path = "rls/native.rs"]
mod native;
#[path = "rls/stats.rs"]
mod stats;
