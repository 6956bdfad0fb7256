//! Proves what an attachment does against a real target over real sockets: each file says what of it. One program, so that what
//! they share is built once.

mod attach;
mod attacks;
mod axes;
mod beforehand;
mod block_sets;
mod connections;
mod custody_target;
mod damage;
mod ecl;
mod epochs;
mod fencing;
mod file_system;
mod growing;
mod hostile_peers;
mod leases;
mod open_at_target;
mod pipelined;
mod redirects;
mod rekeying;
mod schemes;
mod several_initiators;
mod sharing;
mod suites;
mod support;
mod verifying;
mod wide_area;
mod wire;
mod wire_damage;
