//! `kpx version`

pub(crate) mod args;
