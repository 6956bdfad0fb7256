//! Proves what the binary does, as its users call it: each file says what of it. One program, so that what they share is built once.

mod attaching;
mod axes;
mod console;
mod contents;
mod copying;
mod detaching;
mod disks;
mod doctor;
mod fencing;
mod foreign_targets;
mod full;
mod keyserver;
mod metrics;
mod modes;
mod naming;
mod nbd;
mod operating;
mod operators;
mod package;
mod pairing;
mod product;
mod progress;
mod receiving;
mod refusals;
#[path = "../../src/demo/search.rs"]
mod search;
mod secrets;
mod sending;
mod snapshots;
mod stage;
mod store_tools;
mod transfer;
mod verifying;
mod volumes;
mod walkthrough;
mod writers;
