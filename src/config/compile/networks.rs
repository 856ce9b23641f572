//! Sets of addresses: networks in the configuration, and files of networks.

use std::sync::Arc;

use super::each;
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::files::networks::NETWORKS;
use crate::config::parse;
use crate::config::problem::Report;
use crate::config::raw;
use crate::identify::cidr::{CidrSet, Ranges};

/// Compiles all networks of `list` into one set.
pub(super) fn set<const MIN: usize>(
    list: &raw::List<raw::Networks, MIN>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> CidrSet {
    let mut written = Vec::new();
    let mut read: Vec<Arc<Ranges>> = Vec::new();
    each(list, at, |networks, at| {
        match networks {
            raw::Networks::One(network) => written.push(report.take(at, parse::network(&network.0))?),
            raw::Networks::File(raw::FileName { file }) => {
                let list = files.load(file.as_deref()?, &NETWORKS, at.key("file"), report)?;
                if list.is_empty() {
                    report.note(at.key("file"), "the file has no networks, so it matches no address");
                }
                read.push(list);
            }
        }
        Some(())
    });
    if !written.is_empty() {
        read.push(Arc::new(written.into_iter().collect()));
    }
    CidrSet::from_ranges(read)
}
