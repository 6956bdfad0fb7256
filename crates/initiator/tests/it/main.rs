//! Proves what an attachment does against a real target over real sockets: each file says what of it. One program, so that what
//! they share is built once.

mod attach;
mod connections;
mod damage;
mod file_system;
mod hostile_peers;
mod redirects;
mod schemes;
mod support;
mod wire;
