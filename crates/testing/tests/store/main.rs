//! Proves what a store does with what is asked of it, with a medium that fails, and with what an attacker leaves on it: each file says what
//! of it. One program, so that what they share is built once.

mod behaviour;
mod crypto_erase;
mod damaged;
mod erase;
mod full;
mod full_host;
mod growing;
mod hostile;
mod io_errors;
mod media;
mod memory;
mod merging;
mod opening;
mod operations;
mod pinned;
mod review;
mod rot;
mod send;
mod slices;
mod steps;
mod tables;
mod two_tables;
mod widening;
