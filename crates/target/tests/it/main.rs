//! Proves what a target does over real sockets: each file says what of it. One program, so that what they share is built once.

mod admin;
mod attacks;
mod chap;
mod conformance;
mod copies;
mod crypto_erase;
mod digests;
mod floods;
mod flow;
mod idle;
mod interop;
mod joins;
mod leases;
mod memory;
mod neighbours;
mod operations;
mod plain;
mod portals;
mod reservations;
mod scale;
mod sealed;
mod space;
mod spread;
mod support;
mod verification;
mod volumes;
