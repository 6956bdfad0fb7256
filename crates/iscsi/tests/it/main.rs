//! Proves what the session machines do, without I/O: each file says what of it. One program, so that what they share is built once.

mod chap;
mod connections;
mod hostile;
mod hostile_target;
mod initiator_connections;
mod logins;
mod many_connections;
mod model;
mod pair;
mod recovery;
mod scripts;
mod sessions;
