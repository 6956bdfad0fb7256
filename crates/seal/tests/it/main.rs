//! Proves what sealing promises: its bytes (golden, suites, XAES), and what a store can do to them (hostile). One program, so that what
//! they share is built once.

mod golden;
mod hostile;
mod suites;
mod vectors;
mod xaes_vectors;
