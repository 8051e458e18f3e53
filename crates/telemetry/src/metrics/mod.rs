//! What each role measures: instruments, their registry, and the two ways out of it.
//!
//! ```text
//!  a role's metrics.rs ──family, observe──> Registry ──read──┬─> text: GET /metrics (Prometheus, OpenMetrics)
//!     writes as things happen                                └─> otlp, push: the same to an OTLP endpoint
//! ```
//!
//! A role makes one [`Registry`], and in its `metrics.rs` declares each metric as a [`Desc`]: name, unit, labels,
//! meaning. A test of each role keeps `docs/reference/metrics.md` and those declarations consistent ([`documented`]).
//! Names are OpenTelemetry's; Prometheus gets them with underscores, the unit and `_total`.
//! docs/decisions/0011-metrics.md says why its SDK is not used.
//!
//! No label's values come from strangers: they are words of ours, names of deployed functions, and ids of workers. Each
//! metric has at most 2,000 series, and those of a deleted function are dropped.

pub mod buckets;
mod description;
mod documentation;
mod family;
mod instruments;
pub(crate) mod otlp;
mod process;
pub(crate) mod push;
mod registry;
mod s3;
mod text;

pub use description::{Desc, Kind, Value};
pub use documentation::documented;
pub use family::{Family, Series};
pub use instruments::{Counter, Exemplar, Gauge, Histogram, HistogramValue};
pub use process::observe_process;
pub use registry::{Reading, Registry};
pub use s3::S3Metrics;
pub use text::exposition;
