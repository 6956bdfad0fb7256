//! The key server's tests through its public face, in one binary. Absent: attacks on its wire and its files (unit tests).

mod service;
mod site;
mod standby;
