//! Sets of addresses: networks in the configuration, and files of networks.

use std::sync::Arc;

use super::map_items;
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::networks::NETWORKS;
use crate::parse;
use crate::raw;
use weir_policy::identify::cidr::{CidrSet, Ranges};

/// Compiles all networks of `list` into one set.
pub(super) fn compile_set<const MIN: usize>(
    list: &raw::List<raw::Networks, MIN>,
    at: At<'_>,
    files: &mut DataFiles,
) -> CidrSet {
    let mut inline = Vec::new();
    let mut ranges: Vec<Arc<Ranges>> = Vec::new();
    map_items(list, at, |networks, at| {
        match networks {
            raw::Networks::One(network) => inline.push(at.ok(parse::network(&network.0))?),
            raw::Networks::File(raw::FileName { file }) => {
                let list = at.key("file").load(files, file.as_deref()?, &NETWORKS)?;
                if list.is_empty() {
                    at.key("file").note("the file has no networks, so it matches no address");
                }
                ranges.push(list);
            }
        }
        Some(())
    });
    if !inline.is_empty() {
        ranges.push(Arc::new(inline.into_iter().collect()));
    }
    CidrSet::from_ranges(ranges)
}
