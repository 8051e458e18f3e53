//! rekindle-snapshotter
