//! What a bundle says of itself: the outputs, the templates, the pager's maps, and the files that follow.

use rekindle_pager::address_map::{AddressMap, Origin};
use rekindle_verify::EAGER_PREFIX;
use serde::{Deserialize, Serialize};

use crate::snapshots::connections::ConnectionNote;
use crate::snapshots::{FileNumbers, PipeNote};

/// The bundle's content apart from its files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Header {
    /// Names of the outputs in the images.
    pub(super) pipes: Vec<PipeNote>,
    /// Names of the templates in the images, in order.
    pub(super) templates: Vec<String>,
    /// The function's connections to itself. A source of an earlier version sends none.
    #[serde(default)]
    pub(super) connections: Vec<ConnectionNote>,
    /// The numbers of files that the target writes.
    #[serde(flatten)]
    pub(super) file_numbers: FileNumbers,
    /// What the addresses of each process belong to, where that is not the snapshot's page of the same number.
    pub(super) maps: Vec<(i32, Vec<PageSpan>)>,
    /// Names and lengths of the files that follow, in order.
    pub(super) files: Vec<(String, u64)>,
}

/// The pages `start..end`, and what the first of them belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PageSpan {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) of: SpanOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SpanOrigin {
    #[serde(rename = "s")]
    Snapshot(u64),
    #[serde(rename = "f")]
    File(u64),
    #[serde(rename = "z")]
    Zero,
}

pub(super) fn pieces(map: &AddressMap) -> Vec<PageSpan> {
    let piece = |(pages, origin): (std::ops::Range<u64>, Origin)| PageSpan {
        start: pages.start,
        end: pages.end,
        of: match origin {
            Origin::Snapshot(source) => SpanOrigin::Snapshot(source),
            Origin::File(source) => SpanOrigin::File(source),
            Origin::Zero => SpanOrigin::Zero,
        },
    };
    map.pieces().map(piece).collect()
}

/// Sets the spans of `pieces` in `map`.
pub(super) fn set_pieces(map: &mut AddressMap, pieces: &[PageSpan]) {
    for piece in pieces {
        let origin = match piece.of {
            SpanOrigin::Snapshot(source) => Origin::Snapshot(source),
            SpanOrigin::File(source) => Origin::File(source),
            SpanOrigin::Zero => Origin::Zero,
        };
        map.set(piece.start..piece.end, origin);
    }
}

/// Returns the name of a bundle's file with a process's eager pages.
pub(super) fn eager_name(pid: i32) -> String {
    format!("{EAGER_PREFIX}{pid}")
}
