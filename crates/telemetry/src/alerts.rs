//! Alerts for installations without Prometheus: conditions of this process, sent to a webhook.
//!
//! [`conditions`] derives conditions from samples of the process, [`spike`] recognises a spike of rejections, and
//! [`tracker`] decides which alerts fire, are repeated and are resolved. These three are pure: samples and the time are
//! arguments. [`payload`] writes notifications in the format of Alertmanager's webhooks, [`client`] sends them and
//! [`notifier`] runs all of it. Nothing here is on the path of a request.

mod client;
mod conditions;
mod payload;
mod spike;
mod tracker;

pub mod notifier;
pub mod sample;
pub mod settings;
