//! The product: one binary for storage hosts, initiators and key servers. Its commands are in the library beside it.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    strongroom::run(&std::env::args_os().collect::<Vec<OsString>>())
}
