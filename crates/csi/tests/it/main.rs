//! Proves what the driver does at its socket: each file says what of it.

mod attacks;
mod client;
mod requests;
mod system;
