//! rekindle-pager
